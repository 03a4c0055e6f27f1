// Row moves and gates: embedding, add, copy, gather, store into the paged cache, gated activation, sigmoid scale, clamp,
// and look-ups of expert ids.
//
// Shapes: [rows, width] with strides in elements, f32 or bf16; indices i32. Semantics: src/device/ops.ts.
// Algorithm: element-wise over a grid of (pieces of a row, rows), V elements a thread with one 16-byte access where
// addresses and widths allow. Indices out of range set the fault word and the row is left out.
// Versions and times (H200, bf16; 1, 128, 16384 rows; memory alone 33 and 18 us for the last): one vector a thread: embed, 2,048 wide, 1.1, 1.3,
// 36.6 us; gated activation, 768 wide, 1.4, 1.6, 20.5 us. Others not timed alone.
#include "elements.cuh"

namespace {

using namespace el;

// First column of this thread's vector; blockIdx.y strides over rows so that any number of rows fits the grid.
#define ROWS_AND_COLUMN(V)                                                                                             \
  allow_dependents();                                                                                                  \
  wait_for_predecessors();                                                                                             \
  const int c = (blockIdx.x * blockDim.x + threadIdx.x) * V;                                                           \
  if (c >= width) return;                                                                                              \
  for (long long r = blockIdx.y; r < rows; r += gridDim.y)

template <class W, class O, int V>
DEVICE void embed(O *out, const int *ids, const W *table, int rows, int width, int vocab,
                                      long long outStride, long long idStride) {
  ROWS_AND_COLUMN(V) {
    const int id = ids[r * idStride];
    float v[V] = {};
    if (id >= 0 && id < vocab) load<V>(table + (long long)id * width + c, v);
    store<V>(out + r * outStride + c, v);
  }
}

template <class A, class B, class O, int V>
DEVICE void add(O *out, const A *a, const B *b, int rows, int width, long long outStride,
                                    long long aStride, long long bStride) {
  ROWS_AND_COLUMN(V) {
    float x[V], y[V];
    load<V>(a + r * aStride + c, x);
    load<V>(b + r * bStride + c, y);
#pragma unroll
    for (int j = 0; j < V; j++) x[j] += y[j];
    store<V>(out + r * outStride + c, x);
  }
}

// index: null copies row r
template <class X, class O, int V>
DEVICE void gather(O *out, const X *x, const int *index, int *faults, int rows, int width,
                                       int capacity, long long outStride, long long xStride, long long indexStride) {
  ROWS_AND_COLUMN(V) {
    long long from = r;
    if (index) {
      const int i = index[r * indexStride];
      if (i < 0 || i >= capacity) {
        fault(faults, FAULT_ROW, i);
        continue;
      }
      from = i;
    }
    float v[V];
    load<V>(x + from * xStride + c, v);
    store<V>(out + r * outStride + c, v);
  }
}

template <class X, class O, int V>
DEVICE void storeKv(O *kv, const X *x, const int *slots, int *faults, int rows, int width,
                                        int capacity, long long kvStride, long long xStride, long long slotStride) {
  ROWS_AND_COLUMN(V) {
    const int slot = slots[r * slotStride];
    if (slot < 0) continue;
    if (slot >= capacity) {
      fault(faults, FAULT_SLOT, slot);
      continue;
    }
    float v[V];
    load<V>(x + r * xStride + c, v);
    store<V>(kv + slot * kvStride + c, v);
  }
}

// clamped: swiglu_clamped with limit and alpha; else silu
template <class X, class O, int V>
DEVICE void gated(O *out, const X *x, int rows, int width, int clamped, float limit, float alpha,
                                      long long outStride, long long xStride) {
  ROWS_AND_COLUMN(V) {
    float g[V], u[V];
    load<V>(x + r * xStride + c, g);
    load<V>(x + r * xStride + width + c, u);
#pragma unroll
    for (int j = 0; j < V; j++) {
      if (clamped) {
        const float gate = fminf(g[j], limit);
        g[j] = gate * sigmoid(alpha * gate) * (fmaxf(-limit, fminf(u[j], limit)) + 1.f);
      } else {
        g[j] = g[j] * sigmoid(g[j]) * u[j];
      }
    }
    store<V>(out + r * outStride + c, g);
  }
}

template <class X, class O, int V>
DEVICE void sigmoidScale(O *out, const X *x, const float *gate, int rows, int width, int accumulate,
                                             long long outStride, long long xStride, long long gateStride) {
  ROWS_AND_COLUMN(V) {
    const float g = sigmoid(gate[r * gateStride]);
    float v[V];
    load<V>(x + r * xStride + c, v);
#pragma unroll
    for (int j = 0; j < V; j++) v[j] *= g;
    if (accumulate) {
      float o[V];
      load<V>(out + r * outStride + c, o);
#pragma unroll
      for (int j = 0; j < V; j++) v[j] += o[j];
    }
    store<V>(out + r * outStride + c, v);
  }
}

template <class T>
DEVICE void clampRows(T *x, int rows, int width, float limit, long long stride) {
  ROWS_AND_COLUMN(1) put(x + r * stride + c, fminf(fmaxf(one(x + r * stride + c), -limit), limit));
}

} // namespace

#define MOVES(NAME, X, O, V)                                                                                           \
  extern "C" __global__ void embed_##NAME(O *out, const int *ids, const X *table, int rows, int width, int vocab,      \
                                          long long outStride, long long idStride) {                                   \
    embed<X, O, V>(out, ids, table, rows, width, vocab, outStride, idStride);                                          \
  }                                                                                                                    \
  extern "C" __global__ void gather_##NAME(O *out, const X *x, const int *index, int *faults, int rows, int width,     \
                                           int capacity, long long outStride, long long xStride,                       \
                                           long long indexStride) {                                                    \
    gather<X, O, V>(out, x, index, faults, rows, width, capacity, outStride, xStride, indexStride);                    \
  }                                                                                                                    \
  extern "C" __global__ void store_kv_##NAME(O *kv, const X *x, const int *slots, int *faults, int rows, int width,    \
                                             int capacity, long long kvStride, long long xStride,                      \
                                             long long slotStride) {                                                   \
    storeKv<X, O, V>(kv, x, slots, faults, rows, width, capacity, kvStride, xStride, slotStride);                      \
  }                                                                                                                    \
  extern "C" __global__ void gated_##NAME(O *out, const X *x, int rows, int width, int clamped, float limit,           \
                                          float alpha, long long outStride, long long xStride) {                       \
    gated<X, O, V>(out, x, rows, width, clamped, limit, alpha, outStride, xStride);                                    \
  }                                                                                                                    \
  extern "C" __global__ void sigmoid_scale_##NAME(O *out, const X *x, const float *gate, int rows, int width,          \
                                                  int accumulate, long long outStride, long long xStride,              \
                                                  long long gateStride) {                                              \
    sigmoidScale<X, O, V>(out, x, gate, rows, width, accumulate, outStride, xStride, gateStride);                      \
  }

#define WIDTHS(NAME, X, O)                                                                                             \
  MOVES(NAME##_1, X, O, 1)                                                                                             \
  MOVES(NAME##_8, X, O, 8)

WIDTHS(f32_f32, float, float)
WIDTHS(f32_bf16, float, bf16)
WIDTHS(bf16_f32, bf16, float)
WIDTHS(bf16_bf16, bf16, bf16)

#define ADD(NAME, A, B, O, V)                                                                                          \
  extern "C" __global__ void add_##NAME##_##V(O *out, const A *a, const B *b, int rows, int width,                     \
                                              long long outStride, long long aStride, long long bStride) {             \
    add<A, B, O, V>(out, a, b, rows, width, outStride, aStride, bStride);                                              \
  }
ADD(f32_f32_f32, float, float, float, 1)
ADD(f32_f32_f32, float, float, float, 8)
ADD(bf16_bf16_bf16, bf16, bf16, bf16, 1)
ADD(bf16_bf16_bf16, bf16, bf16, bf16, 8)

extern "C" __global__ void clamp_f32(float *x, int rows, int width, float limit, long long stride) {
  clampRows(x, rows, width, limit, stride);
}
extern "C" __global__ void clamp_bf16(bf16 *x, int rows, int width, float limit, long long stride) {
  clampRows(x, rows, width, limit, stride);
}

// out[r, c] = table[ids[r, c]], -1 stays -1.
extern "C" __global__ void map_ids(int *out, const int *ids, const int *table, int *faults, int rows, int width,
                                   int entries, long long outStride, long long idStride) {
  ROWS_AND_COLUMN(1) {
    const int id = ids[r * idStride + c];
    int to = -1;
    if (id >= entries) el::fault(faults, el::FAULT_EXPERT, id);
    else if (id >= 0) to = table[id];
    out[r * outStride + c] = to;
  }
}

// Logical to physical experts, by src/runtime/replica-hash.ts. table [experts, columns]: the number of replicas, then their physical ids.
extern "C" __global__ void choose_replicas(int *out, const int *ids, const int *keys, const int *positions,
                                           const int *table, int *faults, int rows, int width, int experts, int columns,
                                           int layer, long long outStride, long long idStride, long long keyStride,
                                           long long positionStride) {
  ROWS_AND_COLUMN(1) {
    const int id = ids[r * idStride + c];
    int to = -1;
    if (id >= experts) el::fault(faults, el::FAULT_EXPERT, id);
    else if (id >= 0) {
      const int *row = table + (long long)id * columns;
      const unsigned replicas = (unsigned)row[0];
      unsigned pick = 0;
      if (replicas >= 2) {
        const unsigned token = el::tokenHash(keys[r * keyStride], positions[r * positionStride]);
        pick = el::expertHash(token, layer, id) % replicas;
      }
      to = row[1 + pick];
    }
    out[r * outStride + c] = to;
  }
}
