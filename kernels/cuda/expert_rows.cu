// Rows of tokens to rows of experts and back, for products over many rows.
//
// 1. expert_count: `ids` [rows, top_k] (below 0: no expert) → within[slot] = place of the slot among those of its expert in its
//    piece of 1,024 slots; before[piece][e] = place of the piece's first in expert e. slot = row · top_k + choice.
// 2. expert_tiles: one block. Row offsets of experts, tiles {expert, first row, rows, 0} of at most `most` rows (row_tiles.cuh), their number.
//    Leaves the counters zero, so that the next launch finds them so.
// 3. expert_gather: place[slot], and copies of each token's row to its places. A warp a token.
// 4. (grouped products)
// 5. expert_combine: out[r] = Σ over choices, ascending, of weights[r, c] · y[place].
// Counters are added to in the order in which blocks arrive: rows inside an expert lie in any order, which no bit of a sum depends on.
//
// Versions and times: docs/performance-cuda.md.
#include "elements.cuh"
#include "row_tiles.cuh"

namespace {
constexpr int PIECE = 1024;
}

extern "C" __global__ void __launch_bounds__(256) expert_count(const int *ids, int ids_stride, int top_k, int slots, int experts,
                                                               int *counts, int *before, u16 *within, int *faults) {
  DYNAMIC_SHARED(int, here); // [experts]
  allow_dependents();
  wait_for_predecessors();
  for (int e = threadIdx.x; e < experts; e += blockDim.x) here[e] = 0;
  __syncthreads();
  for (int i = threadIdx.x; i < PIECE; i += blockDim.x) {
    const int slot = blockIdx.x * PIECE + i;
    if (slot >= slots) break;
    const int e = ids[(i64)(slot / top_k) * ids_stride + slot % top_k];
    if (e >= 0 && e < experts) within[slot] = (u16)atomicAdd(&here[e], 1);
    else if (e >= experts) el::fault(faults, el::FAULT_EXPERT, e);
  }
  __syncthreads();
  for (int e = threadIdx.x; e < experts; e += blockDim.x)
    before[(i64)blockIdx.x * experts + e] = here[e] ? atomicAdd(&counts[e], here[e]) : 0;
}

extern "C" __global__ void __launch_bounds__(1024) expert_tiles(int *counts, int *offsets, int experts, int most, int4 *tiles, int *tile_count) {
  __shared__ int rows_of[32], tiles_of[32];
  allow_dependents();
  wait_for_predecessors();
  const int each = (experts + blockDim.x - 1) / blockDim.x;
  const int begin = min2((int)threadIdx.x * each, experts), end = min2(begin + each, experts);
  int rows = 0, parts = 0;
  for (int e = begin; e < end; e++) rows += counts[e], parts += ceil_div(counts[e], rows_of_tile(counts[e], most));
  int row = rows, tile = parts;
#pragma unroll
  for (int d = 1; d < 32; d <<= 1) {
    const int r = __shfl_up_sync(0xffffffffu, row, d), t = __shfl_up_sync(0xffffffffu, tile, d);
    if (lane_id() >= d) row += r, tile += t;
  }
  if (lane_id() == 31) rows_of[warp_id()] = row, tiles_of[warp_id()] = tile;
  __syncthreads();
  row -= rows, tile -= parts;
  for (int w = 0; w < warp_id(); w++) row += rows_of[w], tile += tiles_of[w];
  for (int e = begin; e < end; e++) {
    const int n = counts[e], each = rows_of_tile(n, most);
    offsets[e] = row;
    for (int at = 0; at < n; at += each) tiles[tile++] = make_int4(e, row + at, min2(each, n - at), 0);
    row += n;
    counts[e] = 0;
  }
  if (threadIdx.x == blockDim.x - 1) *tile_count = tile;
}

extern "C" __global__ void __launch_bounds__(256)
    expert_gather(const bf16 *x, i64 x_stride, int width, const int *ids, int ids_stride, int top_k, int rows, int experts, const int *offsets,
                  const int *before, const u16 *within, int *place, bf16 *to) {
  allow_dependents();
  wait_for_predecessors();
  const int row = blockIdx.x * 8 + warp_id(), lane = lane_id();
  if (row >= rows) return;
  int mine = -1;
  if (lane < top_k) {
    const int e = ids[(i64)row * ids_stride + lane], slot = row * top_k + lane;
    if (e >= 0 && e < experts) mine = offsets[e] + before[(i64)(slot / PIECE) * experts + e] + within[slot];
    place[slot] = mine;
  }
  const uint4 *from = reinterpret_cast<const uint4 *>(x + row * x_stride);
  constexpr int AHEAD = 8;
  const int pieces = width / 8;
  for (int begin = 0; begin < pieces; begin += 32 * AHEAD) {
    const int at = begin + lane;
    uint4 v[AHEAD];
#pragma unroll
    for (int i = 0; i < AHEAD; i++)
      if (at + 32 * i < pieces) v[i] = from[at + 32 * i];
    for (int c = 0; c < top_k; c++) {
      const int target = __shfl_sync(0xffffffffu, mine, c);
      if (target < 0) continue;
      uint4 *row_to = reinterpret_cast<uint4 *>(to + (i64)target * width);
#pragma unroll
      for (int i = 0; i < AHEAD; i++)
        if (at + 32 * i < pieces) row_to[at + 32 * i] = v[i];
    }
  }
}

namespace {

/// A thread sums 8 columns of a row; blocks of 128 threads, one row (x) and 1,024 columns (y).
template <class Out>
DEVICE void combine(Out *out, i64 out_stride, const bf16 *y, i64 y_stride, const int *ids, int ids_stride, const float *weights,
                    int weights_stride, int top_k, int experts, int width, const int *place) {
  allow_dependents();
  wait_for_predecessors();
  const int row = blockIdx.x, column = (blockIdx.y * blockDim.x + threadIdx.x) * 8;
  if (column >= width) return;
  float sum[8] = {};
#pragma unroll 4
  for (int c = 0; c < top_k; c++) {
    const int id = ids[(i64)row * ids_stride + c];
    if (id < 0 || id >= experts) continue;
    const i64 at = place[(i64)row * top_k + c];
    const float weight = weights[(i64)row * weights_stride + c];
    float v[8];
    ldVec(y + at * y_stride + column, v);
#pragma unroll
    for (int i = 0; i < 8; i++) sum[i] = fmaf(weight, v[i], sum[i]);
  }
  Out *to = out + (i64)row * out_stride + column;
  if constexpr (sizeof(Out) == 2) {
    stVec(to, sum);
  } else {
    const float low[4] = {sum[0], sum[1], sum[2], sum[3]}, high[4] = {sum[4], sum[5], sum[6], sum[7]};
    stVec(to, low);
    stVec(to + 4, high);
  }
}

} // namespace

#define COMBINE(NAME, OUT)                                                                                                      \
  extern "C" __global__ void __launch_bounds__(128)                                                                             \
  NAME(OUT *out, i64 out_stride, const bf16 *y, i64 y_stride, const int *ids, int ids_stride, const float *weights,             \
       int weights_stride, int top_k, int experts, int width, const int *place) {                                               \
    combine(out, out_stride, y, y_stride, ids, ids_stride, weights, weights_stride, top_k, experts, width, place);              \
  }

COMBINE(expert_combine_bf16, bf16)
COMBINE(expert_combine_f32, float)
