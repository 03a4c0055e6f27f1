// Grouped GEMM with the interface of grouped_gemm_sm90.cu for GPUs from sm_80 on: the slow path there and the reference on the device.
//
// Shapes and `tiles`: as there, but x and W come as pointers. Block (c, t): tile t's rows (at most 128) by 64 columns (`_gated`: 32 gate and
// the 32 matching up rows of W). Eight warps, 4 along rows by 2 along columns, 32×32 each with mma m16n8k16; three stages of
// 32 elements of k by cp.async; rows of shared memory are 80 bytes apart, which keeps ldmatrix free of bank conflicts.
// The grid's y is an upper bound of the number of tiles; blocks from *tile_count on leave.
#include "common.cuh"

namespace {

constexpr int ROWS = 128, COLUMNS = 64, STEP = 32, PITCH = 80, STAGES = 3;
constexpr u32 STAGE_BYTES = (ROWS + COLUMNS) * PITCH;

template <bool GATED>
DEVICE void grouped(const bf16 *x, i64 x_stride, const u8 *w, i64 w_bytes, bf16 *out, i64 out_stride, const int4 *tiles,
                    const int *tile_count, int n, int k) {
  BLOCK_SHARED(u8, shared, STAGES * STAGE_BYTES);
  allow_dependents();
  wait_for_predecessors();
  if ((int)blockIdx.y >= *tile_count) return;
  const int4 tile = tiles[blockIdx.y];
  if (tile.x < 0) return;
  constexpr int WIDTH = GATED ? COLUMNS / 2 : COLUMNS;
  const int lane = lane_id(), warp = warp_id(), warp_row = warp >> 1, warp_column = warp & 1;
  const int column0 = blockIdx.x * WIDTH;
  const bf16 *weights = reinterpret_cast<const bf16 *>(w + (i64)tile.x * w_bytes);
  const u32 base = shared_address(shared);
  const int steps = (k + STEP - 1) / STEP;

  // Row c of the W tile: gated, each warp's half holds 16 gate rows, then the 16 up rows of the same columns.
  auto load = [&](int step) {
    const u32 to = base + step % STAGES * STAGE_BYTES;
    for (int i = threadIdx.x; i < (ROWS + COLUMNS) * 4; i += 256) {
      const int row = i >> 2, at = step * STEP + (i & 3) * 8;
      const bf16 *from = x;
      bool valid = at < k;
      if (row < ROWS) {
        valid = valid && row < tile.z;
        from += (i64)(tile.y + row) * x_stride + at;
      } else {
        const int c = row - ROWS;
        const int column = GATED ? column0 + (c >> 5) * 16 + (c & 15) : column0 + c;
        valid = valid && column < n;
        from = weights + ((i64)column + (GATED && (c & 16) ? n : 0)) * k + at;
      }
      cp_async16(to + row * PITCH + (i & 3) * 16, valid ? from : x, valid);
    }
  };

  float acc[2][4][4] = {};
  for (int s = 0; s < STAGES - 1; s++) {
    if (s < steps) load(s);
    cp_async_commit();
  }
  for (int step = 0; step < steps; step++) {
    cp_async_wait<STAGES - 2>();
    __syncthreads();
    if (step + STAGES - 1 < steps) load(step + STAGES - 1);
    cp_async_commit();
    const u32 at = base + step % STAGES * STAGE_BYTES;
#pragma unroll
    for (int kk = 0; kk < STEP * 2; kk += 32) {
      u32 a[2][4], b[2][4];
#pragma unroll
      for (int i = 0; i < 2; i++) ldmatrix_x4(a[i], at + (warp_row * 32 + i * 16 + (lane & 15)) * PITCH + kk + (lane >> 4) * 16);
      // Matrices of one load: columns 0-7 at k 0 and 8, columns 8-15 at k 0 and 8.
#pragma unroll
      for (int j = 0; j < 2; j++)
        ldmatrix_x4(b[j], at + (ROWS + warp_column * 32 + j * 16 + (lane & 7) + (lane >> 4) * 8) * PITCH + kk + (lane >> 3 & 1) * 16);
#pragma unroll
      for (int i = 0; i < 2; i++)
#pragma unroll
        for (int j = 0; j < 4; j++) mma_bf16(acc[i][j], a[i], b[j >> 1][(j & 1) * 2], b[j >> 1][(j & 1) * 2 + 1]);
    }
  }
#pragma unroll
  for (int i = 0; i < 2; i++)
#pragma unroll
    for (int half = 0; half < 2; half++) {
      const int row = warp_row * 32 + i * 16 + half * 8 + (lane >> 2);
      if (row >= tile.z) continue;
      bf16 *to = out + (i64)(tile.y + row) * out_stride;
#pragma unroll
      for (int j = 0; j < (GATED ? 2 : 4); j++) {
        const int column = column0 + warp_column * (WIDTH / 2) + j * 8 + (lane & 3) * 2;
        if (column >= n) continue;
        float first = acc[i][j][half * 2], second = acc[i][j][half * 2 + 1];
        if (GATED) {
          first = first / (1.0f + expf(-first)) * acc[i][(j + 2) & 3][half * 2];
          second = second / (1.0f + expf(-second)) * acc[i][(j + 2) & 3][half * 2 + 1];
        }
        *reinterpret_cast<u32 *>(to + column) = pack_bf16(first, second);
      }
    }
}

} // namespace

#define GROUPED(NAME, GATED)                                                                                                    \
  extern "C" __global__ void __launch_bounds__(256)                                                                             \
  NAME(const bf16 *x, i64 x_stride, const u8 *w, i64 w_bytes, bf16 *out, i64 out_stride, const int4 *tiles,                     \
       const int *tile_count, int n, int k) {                                                                                   \
    grouped<GATED>(x, x_stride, w, w_bytes, out, out_stride, tiles, tile_count, n, k);                                          \
  }

GROUPED(grouped_gemm_mma, false)
GROUPED(grouped_gemm_mma_gated, true)
