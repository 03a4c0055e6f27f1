// Rows grouped by expert: counts, offsets and lists, rows copied into that order, and the weighted sum back.
//
// Shapes: ids i32 [rows, topK] (a stride between rows), -1 or beyond the experts: no expert. An entry is token * topK + slot.
// expert_lists gives counts i32 [experts], offsets i32 [experts + 1] (each expert begins at a multiple of `align`; the last
// is the end), entries i32 [offsets[experts]] (which entry lies at a place; -1 in padding), places i32 [rows * topK] (where an
// entry lies; -1 without an expert), blocks i32 (which expert a block of `align` rows belongs to, -1 beyond the end).
// Entries of an expert lie in ascending order. masked: the place of an expert is expert * capacity instead.
// Algorithm: ranks inside a chunk of 1024 entries by match instructions and a table of counts a warp; chunks before
// it by a sum over the table of chunk counts. Up to 1024 entries one block does all. No atomics on order: lists are the same
// in every run.
// Versions and times: not measured yet.
#include "elements.cuh"

namespace {

using namespace el;

constexpr int CHUNK = 1024;

// Rank of this thread's entry among those of its expert in the block, and the block's counts in `warpCounts` [32][experts]
// turned into exclusive sums over warps; `total` [experts] gets the sums. 1024 threads.
DEVICE int rankInChunk(int expert, unsigned short *warpCounts, int *total, int experts) {
  const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
  for (int i = threadIdx.x; i < 32 * experts; i += CHUNK) warpCounts[i] = 0;
  __syncthreads();
  const unsigned same = __match_any_sync(0xffffffffu, expert);
  const int rank = __popc(same & ((1u << lane) - 1u));
  if (expert >= 0 && rank == 0) warpCounts[warp * experts + expert] = (unsigned short)__popc(same);
  __syncthreads();
  for (int e = threadIdx.x; e < experts; e += CHUNK) {
    int before = 0;
    for (int w = 0; w < 32; w++) {
      const int count = warpCounts[w * experts + e];
      warpCounts[w * experts + e] = (unsigned short)before;
      before += count;
    }
    total[e] = before;
  }
  __syncthreads();
  return expert >= 0 ? warpCounts[warp * experts + expert] + rank : 0;
}

DEVICE int expertOf(const int *ids, long long entry, long long entries, int topK, int experts, long long idStride) {
  if (entry >= entries) return -1;
  const int e = ids[entry / topK * idStride + entry % topK];
  return e < experts ? e : -1;
}

// offsets from counts, aligned; every thread of the block may read `offset` afterwards. counts and offset are shared.
DEVICE void alignedOffsets(const int *counts, int *offset, int experts, int align) {
  __syncthreads();
  if (threadIdx.x < 32) {
    int carry = 0;
    for (int first = 0; first < experts; first += 32) {
      const int e = first + threadIdx.x;
      const int size = e < experts ? (counts[e] + align - 1) / align * align : 0;
      int sum = size;
#pragma unroll
      for (int d = 1; d < 32; d <<= 1) {
        const int other = __shfl_up_sync(0xffffffffu, sum, d);
        if ((int)threadIdx.x >= d) sum += other;
      }
      if (e < experts) offset[e] = carry + sum - size;
      carry += __shfl_sync(0xffffffffu, sum, 31);
    }
    if (threadIdx.x == 0) offset[experts] = carry;
  }
  __syncthreads();
}

} // namespace

// Counts of one chunk: chunkCounts[chunk][experts]. grid: chunks, 1024 threads. Shared: 4 * experts bytes.
extern "C" __global__ void expert_counts(int *chunkCounts, const int *ids, int rows, int topK, int experts,
                                         long long idStride) {
  extern __shared__ int count[];
  for (int e = threadIdx.x; e < experts; e += blockDim.x) count[e] = 0;
  __syncthreads();
  const long long entry = (long long)blockIdx.x * CHUNK + threadIdx.x;
  const int e = expertOf(ids, entry, (long long)rows * topK, topK, experts, idStride);
  if (e >= 0) atomicAdd(count + e, 1);
  __syncthreads();
  for (int i = threadIdx.x; i < experts; i += blockDim.x) chunkCounts[(long long)blockIdx.x * experts + i] = count[i];
}

// chunkCounts become the place of each chunk's first entry of each expert. One block of 1024. Shared: 4 * (2 * experts + 1).
// masked capacity > 0: experts lie `capacity` places apart.
extern "C" __global__ void expert_offsets(int *chunkCounts, int *counts, int *offsets, int *blocks, int chunks, int experts,
                                          int align, int capacity, int maxBlocks) {
  extern __shared__ int shared[];
  int *total = shared, *offset = shared + experts;
  for (int e = threadIdx.x; e < experts; e += blockDim.x) {
    int before = 0;
    for (int c = 0; c < chunks; c++) {
      const int n = chunkCounts[(long long)c * experts + e];
      chunkCounts[(long long)c * experts + e] = before;
      before += n;
    }
    total[e] = before;
    counts[e] = before;
  }
  alignedOffsets(total, offset, experts, align);
  for (int e = threadIdx.x; e <= experts; e += blockDim.x) {
    const int at = capacity > 0 ? e * capacity : offset[e];
    offsets[e] = at;
    if (e < experts)
      for (int c = 0; c < chunks; c++) chunkCounts[(long long)c * experts + e] += at;
  }
  for (int b = threadIdx.x; b < maxBlocks; b += blockDim.x) {
    int expert = -1;
    for (int e = 0; e < experts; e++)
      if (b * align >= offset[e] && b * align < offset[e + 1]) expert = e;
    blocks[b] = expert;
  }
}

// entries [offset, end of the last expert's alignment) must be -1 before (the host fills it). grid: chunks, 1024 threads.
// Shared: 64 * experts + 4 * experts bytes.
extern "C" __global__ void expert_places(int *entries, int *places, const int *chunkPlaces, const int *ids, int rows, int topK,
                                         int experts, long long idStride) {
  extern __shared__ int shared[];
  int *total = shared;
  unsigned short *warpCounts = reinterpret_cast<unsigned short *>(shared + experts);
  const long long entry = (long long)blockIdx.x * CHUNK + threadIdx.x, all = (long long)rows * topK;
  const int e = expertOf(ids, entry, all, topK, experts, idStride);
  const int rank = rankInChunk(e, warpCounts, total, experts);
  if (entry >= all) return;
  int place = -1;
  if (e >= 0) {
    place = chunkPlaces[(long long)blockIdx.x * experts + e] + rank;
    entries[place] = (int)entry;
  }
  places[entry] = place;
}

// All of it for up to 1024 entries. One block of 1024. Shared: 64 * experts + 4 * (2 * experts + 1) bytes.
extern "C" __global__ void expert_lists_small(int *entries, int *places, int *counts, int *offsets, int *blocks,
                                              const int *ids, int rows, int topK, int experts, int align, int capacity,
                                              int maxBlocks, long long idStride) {
  extern __shared__ int shared[];
  int *total = shared, *offset = shared + experts;
  unsigned short *warpCounts = reinterpret_cast<unsigned short *>(shared + 2 * experts + 1);
  const int entry = threadIdx.x, all = rows * topK;
  const int e = expertOf(ids, entry, all, topK, experts, idStride);
  const int rank = rankInChunk(e, warpCounts, total, experts);
  alignedOffsets(total, offset, experts, align);
  for (int i = threadIdx.x; i <= experts; i += CHUNK) {
    offsets[i] = capacity > 0 ? i * capacity : offset[i];
    if (i < experts) counts[i] = total[i];
  }
  for (int b = threadIdx.x; b < maxBlocks; b += CHUNK) {
    int expert = -1;
    for (int i = 0; i < experts; i++)
      if (b * align >= offset[i] && b * align < offset[i + 1]) expert = i;
    blocks[b] = expert;
  }
  if (capacity == 0) {
    for (int i = threadIdx.x; i < experts; i += CHUNK)
      for (int p = offset[i] + total[i]; p < offset[i + 1]; p++) entries[p] = -1;
  }
  if (entry < all) {
    int place = -1;
    if (e >= 0) {
      place = (capacity > 0 ? e * capacity : offset[e]) + rank;
      entries[place] = entry;
    }
    places[entry] = place;
  }
}

namespace {

// out[p] = x[entries[p] / topK]; zeros where there is none. grid (pieces of a row, min(places, 65535)).
template <class T, int V>
DEVICE void permuteRows(T *out, const T *x, const int *entries, const int *end, int topK, int width, long long outStride,
                        long long xStride) {
  const int c = (blockIdx.x * blockDim.x + threadIdx.x) * V;
  if (c >= width) return;
  for (long long p = blockIdx.y; p < *end; p += gridDim.y) {
    const int entry = entries[p];
    float v[V] = {};
    if (entry >= 0) load<V>(x + entry / topK * xStride + c, v);
    store<V>(out + p * outStride + c, v);
  }
}

// out[r] = sum over slots s ascending of weights[r, s] * y[places ? places[r * topK + s] : r * topK + s], f32 inside.
// A slot with ids[r, s] < 0 (ids given) or place -1 adds nothing. grid (pieces of a row, min(rows, 65535)).
template <class Y, class O, int V>
DEVICE void weightedSum(O *out, const Y *y, const int *places, const int *ids, const float *weights, int rows, int topK,
                        int width, long long outStride, long long yStride, long long idStride, long long weightStride) {
  const int c = (blockIdx.x * blockDim.x + threadIdx.x) * V;
  if (c >= width) return;
  for (long long r = blockIdx.y; r < rows; r += gridDim.y) {
    float sum[V] = {};
    for (int s = 0; s < topK; s++) {
      const long long entry = r * topK + s;
      if (ids && ids[r * idStride + s] < 0) continue;
      const long long place = places ? places[entry] : entry;
      if (place < 0) continue;
      const float weight = weights[r * weightStride + s];
      float v[V];
      load<V>(y + place * yStride + c, v);
#pragma unroll
      for (int j = 0; j < V; j++) sum[j] += weight * v[j];
    }
    store<V>(out + r * outStride + c, sum);
  }
}

} // namespace

#define ROWS(NAME, T, V)                                                                                               \
  extern "C" __global__ void permute_rows_##NAME##_##V(T *out, const T *x, const int *entries, const int *end,         \
                                                       int topK, int width, long long outStride, long long xStride) {  \
    permuteRows<T, V>(out, x, entries, end, topK, width, outStride, xStride);                                          \
  }                                                                                                                    \
  extern "C" __global__ void weighted_sum_##NAME##_##V(                                                                \
      T *out, const T *y, const int *places, const int *ids, const float *weights, int rows, int topK, int width,      \
      long long outStride, long long yStride, long long idStride, long long weightStride) {                            \
    weightedSum<T, T, V>(out, y, places, ids, weights, rows, topK, width, outStride, yStride, idStride,                \
                         weightStride);                                                                                \
  }
ROWS(f32, float, 1)
ROWS(f32, float, 8)
ROWS(bf16, bf16, 1)
ROWS(bf16, bf16, 8)
