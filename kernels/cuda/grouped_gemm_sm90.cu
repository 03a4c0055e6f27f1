// Grouped GEMM for many rows: out[r, :] = x[r, :] · W[g]ᵀ in bf16 with f32 sums, where rows lie tile by tile and a tile has one group g.
//
// Shapes: x [rows, K], W [groups, N, K], out [rows, N], all with K or N contiguous. `tiles`: i32x4 {group, first row, rows, 0} with at
// most 128 rows a tile; a group below 0 skips the tile. How many tiles there are is read from `tile_count` when the kernel runs, so
// grids never depend on the routing. Rows of a tile need not be aligned: a box of 128 rows is loaded from the first one on, and
// only the tile's own rows are stored. Needs K % 8 = 0, N % 8 = 0, 16-byte aligned rows.
//
// `_gated`: W is [groups, 2·N, K], gate rows first; out = silu(gate) · up. A block's tile is then 128 gate and the 128 matching up rows,
// so that a thread holds both sides of every product.
//
// Algorithm: persistent blocks of three warpgroups. One thread of the first feeds a ring of 4 stages (x 128×64, W 256×64, 48 KiB, 128-byte
// swizzle) with bulk tensor copies; the other two multiply 64×256 each with wgmma m64n256k16 and keep one batch in flight, so a stage
// is given back when the next one's batch has begun. In a tile of at most 64 rows only one of them multiplies. The ring runs on into the next tile during the epilogue. The epilogue
// transposes 8-byte pieces inside quads of lanes, so that a lane stores 16 bytes.
// Order of tiles: `chunk` row tiles by all column tiles, rows fastest, so that the blocks of a wave share rows and columns.
//
// Versions and times: docs/performance-cuda.md.
#include "wgmma.cuh"

#if defined(__CUDA_ARCH_FEAT_SM90_ALL) || !defined(__CUDA_ARCH__)

namespace {

constexpr int TILE_ROWS = 128, HALF = 128, STEP = 64, STAGES = 4;
constexpr u32 X_BYTES = TILE_ROWS * STEP * 2, W_BYTES = 2 * HALF * STEP * 2, STAGE_BYTES = X_BYTES + W_BYTES;
constexpr int CONSUMER_WARPS = 8;

struct Tile {
  int group, first, rows, column;
};

/// Walks the tiles of one block.
struct Walk {
  const int4 *tiles;
  int count, columns, chunk, next, stride, width;

  DEVICE Walk(const int4 *tiles, int count, int n, int width, int chunk)
      : tiles(tiles), count(count), columns((n + width - 1) / width), chunk(chunk), next(blockIdx.x), stride(gridDim.x), width(width) {}

  DEVICE bool step(Tile &tile) {
    while (next < count * columns) {
      const int strip = next / (chunk * columns), within = next % (chunk * columns);
      const int height = min2(chunk, count - strip * chunk);
      const int4 found = tiles[strip * chunk + within % height];
      next += stride;
      if (found.x < 0) continue;
      tile = Tile{found.x, found.y, found.z, within / height * width};
      return true;
    }
    return false;
  }
};

DEVICE float silu_gate(float gate, float up) { return __fdividef(gate, 1.0f + fast_exp(-gate)) * up; }

/// Words w[0..3] of the four lanes of a quad become their transpose: lane t gets word t of lanes 0, 1, 2, 3.
DEVICE void quad_transpose(u32 (&w)[4]) {
  const bool odd = threadIdx.x & 1, upper = threadIdx.x & 2;
#pragma unroll
  for (int i = 0; i < 4; i += 2) {
    const u32 got = __shfl_xor_sync(0xffffffffu, odd ? w[i] : w[i + 1], 1);
    if (odd) w[i] = got;
    else w[i + 1] = got;
  }
#pragma unroll
  for (int i = 0; i < 2; i++) {
    const u32 got = __shfl_xor_sync(0xffffffffu, upper ? w[i] : w[i + 2], 2);
    if (upper) w[i] = got;
    else w[i + 2] = got;
  }
}

/// Stores 32 columns of one row from `column` on: before, w[j] of lane t holds columns 8j + 2t and the next.
DEVICE void store32(bf16 *row, bool valid, int column, int n, u32 (&w)[4]) {
  quad_transpose(w);
  column += (threadIdx.x & 3) * 8;
  if (valid && column < n) *reinterpret_cast<uint4 *>(row + column) = make_uint4(w[0], w[1], w[2], w[3]);
}

/// A warp no longer reads a stage.
DEVICE void give_back(u32 barrier) {
  if (lane_id() == 0) mbarrier_arrive(barrier);
}

template <bool GATED>
DEVICE void grouped_gemm(const TensorMap *x_map, const TensorMap *w_map, bf16 *out, i64 out_stride, const int4 *tiles,
                         const int *tile_count, int n, int k, int chunk) {
  DYNAMIC_SHARED(u8, raw);
  // Swizzled boxes lie at multiples of 1024 bytes.
  const u32 base = (shared_address(raw) + 1023u) & ~1023u;
  const u32 full = base + STAGES * STAGE_BYTES, empty = full + STAGES * 8;
  constexpr int WIDTH = GATED ? HALF : 2 * HALF;

  if (threadIdx.x == 0) {
    tma_prefetch_map(x_map);
    tma_prefetch_map(w_map);
    for (int s = 0; s < STAGES; s++) {
      mbarrier_init(full + 8 * s, 1);
      mbarrier_init(empty + 8 * s, CONSUMER_WARPS);
    }
    mbarrier_init_fence();
  }
  __syncthreads();
  allow_dependents();
  wait_for_predecessors();

  const int steps = (k + STEP - 1) / STEP;
  Walk walk(tiles, *tile_count, n, WIDTH, chunk);
  Tile tile;
  int stage = 0;
  u32 phase = 0;
  const int warpgroup = threadIdx.x >> 7;

  if (warpgroup == 0) {
    registers_decrease<40>();
    if (threadIdx.x == 0) {
      while (walk.step(tile)) {
        const int second = tile.column + (GATED ? n : HALF);
        for (int step = 0; step < steps; step++) {
          const u32 x_to = base + stage * STAGE_BYTES, w_to = x_to + X_BYTES, barrier = full + 8 * stage;
          mbarrier_wait(empty + 8 * stage, phase ^ 1);
          mbarrier_arrive_expect(barrier, STAGE_BYTES);
          tma_load_2d(x_to, x_map, step * STEP, tile.first, barrier);
          tma_load_3d(w_to, w_map, step * STEP, tile.column, tile.group, barrier);
          tma_load_3d(w_to + W_BYTES / 2, w_map, step * STEP, second, tile.group, barrier);
          if (++stage == STAGES) stage = 0, phase ^= 1;
        }
      }
    }
  } else {
    registers_increase<232>();
    const int lane = lane_id();
    const u32 x_half = (warpgroup - 1) * (X_BYTES / 2);
    float acc[128];
    bool more = walk.step(tile);
    while (more) {
      // A tile of at most 64 rows is the first warpgroup's alone: half the products, and half their power.
      if (tile.rows <= (warpgroup - 1) * 64) {
        for (int step = 0; step < steps; step++) {
          mbarrier_wait(full + 8 * stage, phase);
          give_back(empty + 8 * stage);
          if (++stage == STAGES) stage = 0, phase ^= 1;
        }
        more = walk.step(tile);
        continue;
      }
      for (int step = 0; step < steps; step++) {
        const u32 at = base + stage * STAGE_BYTES;
        const u64 a = wgmma_descriptor_128B(at + x_half), b = wgmma_descriptor_128B(at + X_BYTES);
        mbarrier_wait(full + 8 * stage, phase);
        wgmma_fence();
#pragma unroll
        for (int i = 0; i < STEP / 16; i++) wgmma_m64n256k16(acc, a + 2 * i, b + 2 * i, step + i > 0);
        wgmma_commit();
        // The batch before this one has ended: its stage is free.
        if (step > 0) {
          wgmma_wait<1>();
          give_back(empty + 8 * (stage == 0 ? STAGES - 1 : stage - 1));
        }
        if (++stage == STAGES) stage = 0, phase ^= 1;
      }
      // Looked up while the last batch runs.
      Tile following = tile;
      more = walk.step(following);
      wgmma_wait<0>();
      give_back(empty + 8 * (stage == 0 ? STAGES - 1 : stage - 1));

#pragma unroll
      for (int i = 0; i < 128; i++) wgmma_keep(acc[i]);
      const int within = (threadIdx.x - 128) / 32 * 16 + lane / 4;
#pragma unroll
      for (int half = 0; half < 2; half++) {
        const int r = within + 8 * half;
        bf16 *row = out + (i64)(tile.first + r) * out_stride;
#pragma unroll
        for (int j = 0; j < WIDTH / 8; j += 4) {
          u32 w[4];
#pragma unroll
          for (int i = 0; i < 4; i++) {
            const int e = 4 * (j + i) + 2 * half;
            w[i] = GATED ? pack_bf16(silu_gate(acc[e], acc[(e + 64) % 128]), silu_gate(acc[e + 1], acc[(e + 65) % 128]))
                         : pack_bf16(acc[e], acc[e + 1]);
          }
          store32(row, r < tile.rows, tile.column + j * 8, n, w);
        }
      }
      tile = following;
    }
  }
}

} // namespace

#define GROUPED_GEMM(NAME, GATED)                                                                                               \
  extern "C" __global__ void __launch_bounds__(384, 1)                                                                          \
  NAME(const __grid_constant__ TensorMap x_map, const __grid_constant__ TensorMap w_map, bf16 *out, i64 out_stride,             \
       const int4 *tiles, const int *tile_count, int n, int k, int chunk) {                                                     \
    grouped_gemm<GATED>(&x_map, &w_map, out, out_stride, tiles, tile_count, n, k, chunk);                                       \
  }

GROUPED_GEMM(grouped_gemm, false)
GROUPED_GEMM(grouped_gemm_gated, true)

#endif // sm_90a
