// Plain matrix products: the slow reference on the device, for any n, k, strides and types.
//
// Shapes: out[r, 0..n) (+)= x[r, 0..k) . W[i, 0..n, 0..k)^T + bias; W row-major f32 or bf16, x and out f32 or bf16; bias f32.
// linear: i = 0. heads: i = head, x and out pieces headStride apart. experts: a row a (token, slot), i = ids[token, slot].
// Algorithm: a warp an output, lanes stride over k with V elements each (4 where addresses allow); the order of the sum depends
// on k and V alone, so a row's bits do not depend on other rows. Every output reads its row of W again.
// Versions and times: reference only, not tuned.
#include "elements.cuh"

namespace {

using namespace el;

template <class X, class W, int V> DEVICE float dot(const X *x, const W *w, int k, int lane) {
  float sum = 0.f;
#pragma unroll 4
  for (int c = lane * V; c < k; c += 32 * V) {
    float a[V], b[V];
    load<V>(x + c, a);
    load<V>(w + c, b);
#pragma unroll
    for (int j = 0; j < V; j++) sum += a[j] * b[j];
  }
  return warp_sum(sum);
}

// grid (ceil(n / warps), min(rows, 65535), heads)
template <class X, class W, class O, int V>
DEVICE void product(O *out, const X *x, const W *w, const float *bias, int rows, int n, int k, int accumulate,
                    long long outStride, long long xStride, long long outHeadStride, long long xHeadStride,
                    long long matrixStride) {
  const int i = blockIdx.x * (blockDim.x >> 5) + (threadIdx.x >> 5), lane = threadIdx.x & 31, head = blockIdx.z;
  if (i >= n) return;
  w += head * matrixStride + (long long)i * k;
  for (long long r = blockIdx.y; r < rows; r += gridDim.y) {
    float y = dot<X, W, V>(x + r * xStride + head * xHeadStride, w, k, lane);
    if (lane == 0) {
      O *o = out + r * outStride + head * outHeadStride + i;
      if (bias) y += bias[i];
      if (accumulate) y += one(o);
      put(o, y);
    }
  }
}

// Row q = token * topK + slot of out [rows * topK, n], from row `token` of x (shared) or row q of x.
// grid (ceil(n / warps), min(rows * topK, 65535)). Absent experts (-1) leave their row alone.
template <class X, class W, class O, int V>
DEVICE void expertProduct(O *out, const X *x, const W *w, const float *bias, const int *ids, int *faults, int rows,
                          int topK, int n, int k, int count, int shared, long long outStride, long long xStride,
                          long long idStride, long long matrixStride) {
  const int i = blockIdx.x * (blockDim.x >> 5) + (threadIdx.x >> 5), lane = threadIdx.x & 31;
  if (i >= n) return;
  for (long long q = blockIdx.y; q < (long long)rows * topK; q += gridDim.y) {
    const long long token = q / topK;
    const int e = ids[token * idStride + q % topK];
    if (e < 0) continue;
    if (e >= count) {
      if (lane == 0) fault(faults, FAULT_EXPERT, e);
      continue;
    }
    float y = dot<X, W, V>(x + (shared ? token : q) * xStride, w + e * matrixStride + (long long)i * k, k, lane);
    if (lane == 0) put(out + q * outStride + i, bias ? y + bias[(long long)e * n + i] : y);
  }
}

} // namespace

#define PRODUCTS(NAME, X, W, O, V)                                                                                     \
  extern "C" __global__ void product_##NAME##_##V(O *out, const X *x, const W *w, const float *bias, int rows, int n, int k, \
                                            int accumulate, long long outStride, long long xStride,                    \
                                            long long outHeadStride, long long xHeadStride, long long matrixStride) {  \
    product<X, W, O, V>(out, x, w, bias, rows, n, k, accumulate, outStride, xStride, outHeadStride, xHeadStride,          \
                     matrixStride);                                                                                    \
  }                                                                                                                    \
  extern "C" __global__ void expert_product_##NAME##_##V(                                                                 \
      O *out, const X *x, const W *w, const float *bias, const int *ids, int *faults, int rows, int topK, int n,       \
      int k, int count, int shared, long long outStride, long long xStride, long long idStride,                        \
      long long matrixStride) {                                                                                        \
    expertProduct<X, W, O, V>(out, x, w, bias, ids, faults, rows, topK, n, k, count, shared, outStride, xStride,          \
                           idStride, matrixStride);                                                                    \
  }

#define TYPES(NAME, X, W, O)                                                                                           \
  PRODUCTS(NAME, X, W, O, 1)                                                                                           \
  PRODUCTS(NAME, X, W, O, 4)

// x, W, out
TYPES(f32_f32_f32, float, float, float)
TYPES(f32_bf16_f32, float, bf16, float)
TYPES(bf16_bf16_bf16, bf16, bf16, bf16)
TYPES(bf16_bf16_f32, bf16, bf16, float)
TYPES(bf16_f32_bf16, bf16, float, bf16)
TYPES(bf16_f32_f32, bf16, float, float)
