// Elements of rows as small kernels read and write them: f32 or bf16 in memory, f32 in registers, V at once.
// A vector access needs an address that is a multiple of its bytes; the host picks V = 1 where offsets, strides or widths
// do not allow more. Also here: the sum over a block in an order that the number of rows has no part in, and the fault
// word through which kernels say that an index read from memory is not one.
#pragma once
#include "common.cuh"

namespace el {

template <int V> DEVICE void load(const float *p, float *v) {
  if constexpr (V % 4 == 0) {
#pragma unroll
    for (int i = 0; i < V; i += 4) {
      float4 q = *reinterpret_cast<const float4 *>(p + i);
      v[i] = q.x, v[i + 1] = q.y, v[i + 2] = q.z, v[i + 3] = q.w;
    }
  } else {
#pragma unroll
    for (int i = 0; i < V; i++) v[i] = p[i];
  }
}

template <int V> DEVICE void load(const bf16 *p, float *v) {
  if constexpr (V == 8) {
    uint4 q = *reinterpret_cast<const uint4 *>(p);
    v[0] = low_bf16(q.x), v[1] = high_bf16(q.x), v[2] = low_bf16(q.y), v[3] = high_bf16(q.y);
    v[4] = low_bf16(q.z), v[5] = high_bf16(q.z), v[6] = low_bf16(q.w), v[7] = high_bf16(q.w);
  } else if constexpr (V == 4) {
    uint2 q = *reinterpret_cast<const uint2 *>(p);
    v[0] = low_bf16(q.x), v[1] = high_bf16(q.x), v[2] = low_bf16(q.y), v[3] = high_bf16(q.y);
  } else {
#pragma unroll
    for (int i = 0; i < V; i++) v[i] = to_float(p[i]);
  }
}

template <int V> DEVICE void store(float *p, const float *v) {
  if constexpr (V % 4 == 0) {
#pragma unroll
    for (int i = 0; i < V; i += 4) *reinterpret_cast<float4 *>(p + i) = make_float4(v[i], v[i + 1], v[i + 2], v[i + 3]);
  } else {
#pragma unroll
    for (int i = 0; i < V; i++) p[i] = v[i];
  }
}

template <int V> DEVICE void store(bf16 *p, const float *v) {
  if constexpr (V == 8) {
    *reinterpret_cast<uint4 *>(p) =
        make_uint4(pack_bf16(v[0], v[1]), pack_bf16(v[2], v[3]), pack_bf16(v[4], v[5]), pack_bf16(v[6], v[7]));
  } else if constexpr (V == 4) {
    *reinterpret_cast<uint2 *>(p) = make_uint2(pack_bf16(v[0], v[1]), pack_bf16(v[2], v[3]));
  } else {
#pragma unroll
    for (int i = 0; i < V; i++) p[i] = to_bf16(v[i]);
  }
}

template <class T> DEVICE float one(const T *p) { return to_float(*p); }
template <class T> DEVICE void put(T *p, float x) { *p = from_float<T>(x); }

/// Sum over a block of whole warps, 1024 threads at most; every thread gets it. `parts`: 32 floats of shared memory.
DEVICE float blockSum(float x, float *parts) {
  x = warp_sum(x);
  const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, warps = blockDim.x >> 5;
  if (warps == 1) return x;
  __syncthreads();
  if (lane == 0) parts[warp] = x;
  __syncthreads();
  return warp_sum(lane < warps ? parts[lane] : 0.f);
}

DEVICE float sigmoid(float x) { return 1.f / (1.f + expf(-x)); }

/// The hashes of src/runtime/mix-bits.ts: a token by any word and its position, then an expert of a layer for it.
DEVICE unsigned mixBits(unsigned h) {
  h = (h ^ (h >> 16)) * 0x85ebca6bu;
  h = (h ^ (h >> 13)) * 0xc2b2ae35u;
  return h ^ (h >> 16);
}
DEVICE unsigned tokenHash(int word, int position) {
  return mixBits(mixBits((unsigned)word) ^ ((unsigned)position * 0x9e3779b1u));
}
DEVICE unsigned expertHash(unsigned token, int layer, int expert) {
  return mixBits(token ^ mixBits((unsigned)layer * 0x27d4eb2fu + (unsigned)expert));
}

/// Word 0 is the first kind met, word 1 the index. Kinds are those of src/device/cuda/ops/faults.ts. The kernel goes on
/// with a harmless index.
enum Fault { FAULT_ROW = 1, FAULT_SLOT = 2, FAULT_POSITION = 3, FAULT_PAGE = 4, FAULT_EXPERT = 5 };

static __device__ __noinline__ void fault(int *faults, int kind, int index) {
  if (atomicCAS(faults, 0, kind) == 0) faults[1] = index;
}

} // namespace el
