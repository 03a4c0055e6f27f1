// Grouped GEMM where weights are the rows of the tensor cores' product and tokens its columns: out[r, :] = x[r, :] · W[g]ᵀ in bf16 with f32
// sums. A tile is up to 288 rows of x of one group g, so that a block that has 128 rows of W reads them once for all of them.
//
// Shapes: x [rows, K], W [groups, N, K], out [rows, N], all with K or N contiguous. `tiles`: i32x4 {group, first row, rows, 0}; a group
// below 0 skips the tile. How many tiles there are is read from `tile_count` when the kernel runs, so grids never depend on the
// routing. Rows of a tile need not be aligned. Needs K % 8 = 0, N % 8 = 0, 16-byte aligned rows.
//
// `_gated`: W is [groups, 2·N, K], gate rows first; out = silu(gate) · up. The 128 rows of W are then 64 of each in turns of 8, so that a
// thread holds both sides of every product.
//
// Algorithm: persistent blocks of three warpgroups. One thread of the first feeds a ring of 4 stages (W 128×64, x up to 288×64, 52 KiB,
// 128-byte swizzle) with bulk tensor copies; the other two multiply 64 rows of W each with all rows of the tile, by wgmma as wide as
// the tile is, in 16s (above 160 rows), and keep one batch in flight. Results are transposed into shared memory beside the ring or, larger
// ones, into the tile's last stage, and leave as bulk copies while the next tile is multiplied.
// Order of tiles: `chunk` tiles by all columns of W, tiles fastest: a group of several tiles has them beside each other.
// Why: tiles of 128 rows, as such kernels usually have, cut a group of 256 ± 16 rows into two and often a sliver of a third, and every one
// reads W again: from L2 while blocks stay in step, which tiles of different lengths do not.
//
// Versions and times: docs/performance-cuda.md.
#include "wgmma.cuh"

#if defined(__CUDA_ARCH_FEAT_SM90_ALL) || !defined(__CUDA_ARCH__)

namespace {

constexpr int W_ROWS = 128, MOST_ROWS = 288, BOX_ROWS = 32, LARGE_BOX_ROWS = 128, STEP = 64, STAGES = 4;
constexpr u32 W_BYTES = W_ROWS * STEP * 2, BOX_BYTES = BOX_ROWS * STEP * 2, STAGE_BYTES = W_BYTES + MOST_ROWS * STEP * 2;
constexpr int CONSUMER_WARPS = 8;
/// Shared memory beside the ring, for results.
constexpr u32 APART_BYTES = 16384;

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

struct Ring {
  u32 base, apart, full, empty;
  int stage;
  u32 phase;

  DEVICE u32 at() const { return base + stage * STAGE_BYTES; }
  DEVICE void next() {
    if (++stage == STAGES) stage = 0, phase ^= 1;
  }
  /// The stage of `steps` steps ago, at most as many as there are stages.
  DEVICE int number(int steps) const { return stage >= steps ? stage - steps : stage + STAGES - steps; }
  DEVICE u32 before(int steps) const { return base + number(steps) * STAGE_BYTES; }
  DEVICE u32 empty_before(int steps) const { return empty + 8 * number(steps); }
  /// This warp no longer uses it.
  DEVICE void give_back(int steps) const {
    __syncwarp();
    if (lane_id() == 0) mbarrier_arrive(empty_before(steps));
  }
};

DEVICE float silu_gate(float gate, float up) { return __fdividef(gate, 1.0f + fast_exp(-gate)) * up; }

/// Where results go: boxes of 64 columns (gated: 32) by 32 and by 8 rows, and plain rows for what is left.
struct Out {
  const TensorMap *boxes32, *boxes8;
  bf16 *rows;
  i64 stride;
  int n;
};

/// Where the results of a tile of T rows lie in shared memory until they have left: a row a token, 64 (gated: 32) columns of each of the two
/// warpgroups. What fits beside the ring lies there, so that the ring runs on; else in the tile's last stage (and what is left of the second
/// warpgroup's rows beside the ring), or in the last two.
template <int T, bool GATED> struct Place {
  static constexpr int COLUMNS = GATED ? 32 : 64, PITCH = COLUMNS * 2, STAGE_ROWS = STAGE_BYTES / PITCH;
  /// Rows of the second warpgroup that follow the first's in one stage, in whole boxes.
  static constexpr int TOGETHER = STAGE_ROWS >= 2 * T ? T : (STAGE_ROWS - T) / 32 * 32;
  static constexpr int HELD = 2 * T * PITCH <= (int)APART_BYTES ? 0 : (T - TOGETHER) * PITCH <= (int)APART_BYTES ? 1 : 2;
};

/// A warpgroup's results there, 16-byte pieces swizzled as bulk copies have it. Rows from `split` on lie elsewhere.
template <int T, bool GATED> struct Staged {
  using P = Place<T, GATED>;
  static constexpr int COLUMNS = P::COLUMNS, PITCH = P::PITCH;
  u32 first, rest;
  int split;

  DEVICE Staged(const Ring &ring, int warpgroup) {
    const u32 begin = P::HELD == 0 ? ring.apart : ring.before(P::HELD == 2 && warpgroup == 1 ? 2 : 1);
    // Beside the ring each has its half, however long the tile before was.
    first = begin + warpgroup * (P::HELD == 0 ? APART_BYTES / 2 : P::HELD == 1 ? T * PITCH : 0);
    split = P::HELD == 1 && warpgroup == 1 ? P::TOGETHER : T;
    rest = ring.apart;
  }

  DEVICE u32 at(int row) const { return row < split ? first + row * PITCH : rest + (row - split) * PITCH; }
  DEVICE u32 piece(int row, int p) const { return at(row) + ((p ^ (GATED ? row >> 1 & 3 : row & 7)) << 4); }

  /// acc[64 × T]: of 8 columns and 8 tokens a lane holds the column lane / 4 and two tokens.
  DEVICE void put(const float (&acc)[T / 2]) const {
    const int lane = lane_id(), warp = threadIdx.x >> 5 & 3, m = lane >> 3;
    constexpr int TOKENS = GATED ? 32 : 16;
#pragma unroll
    for (int begin = 0; begin < T; begin += TOKENS) {
      u32 w[4];
#pragma unroll
      for (int i = 0; i < 4; i++) {
        // Gated: four pieces of 8 tokens (at the end maybe two, twice). Plain: two, of the warp's first and last 8 columns.
        const int e = GATED ? begin / 2 + 4 * (begin + TOKENS > T ? i & 1 : i) : begin / 2 + 4 * (i >> 1) + 2 * (i & 1);
        w[i] = GATED ? pack_bf16(silu_gate(acc[e], acc[e + 2]), silu_gate(acc[e + 1], acc[e + 3])) : pack_bf16(acc[e], acc[e + 1]);
      }
      const int row = begin + (GATED ? (begin + TOKENS > T ? m & 1 : m) : m >> 1) * 8 + (lane & 7);
      store_matrices_transposed(piece(row, GATED ? warp : 2 * warp + (m & 1)), w);
    }
  }

  /// One thread: all whole eights of rows, as one group of bulk copies.
  DEVICE void send(const Out &out, const Tile &tile, int column) const {
    int row = 0;
    for (; row + 32 <= tile.rows; row += 32) tma_store_2d(out.boxes32, column, tile.first + row, at(row));
    for (; row + 8 <= tile.rows; row += 8) tma_store_2d(out.boxes8, column, tile.first + row, at(row));
    bulk_commit();
  }
  /// A warp: the rows that are left, since a box would reach into the next tile.
  DEVICE void store_rest(const Out &out, const Tile &tile, int column) const {
    const int first = tile.rows & ~7, pieces = (tile.rows - first) * (COLUMNS / 8);
    for (int i = lane_id(); i < pieces; i += 32) {
      const int row = first + i / (COLUMNS / 8), p = i % (COLUMNS / 8);
      if (column + 8 * p < out.n)
        *reinterpret_cast<uint4 *>(out.rows + (i64)(tile.first + row) * out.stride + column + 8 * p) = ld_shared16(piece(row, p));
    }
  }
};

/// A tile of at most T rows; `following` is looked up while the last batch runs. Warpgroup 0 or 1 of those that multiply.
template <int T, bool GATED>
DEVICE bool multiply_tile(Ring &ring, int steps, int warpgroup, Walk &walk, const Tile &tile, Tile &following, const Out &out, u32 &sending, bool &crossed) {
  // One instruction has at most 256 columns.
  constexpr int FIRST = T <= 256 ? T : (T / 2 + 15) / 16 * 16, HELD = Place<T, GATED>::HELD;
  const bool leads = (threadIdx.x & 127) == 0;
  float acc[T / 2];
  // Said, so that the registers of one width are free for the others.
#pragma unroll
  for (int i = 0; i < T / 2; i++) acc[i] = 0.0f;
  for (int step = 0; step < steps; step++) {
    const u64 a = wgmma_descriptor_128B(ring.at() + warpgroup * (W_BYTES / 2)), b = wgmma_descriptor_128B(ring.at() + W_BYTES);
    mbarrier_wait(ring.full + 8 * ring.stage, ring.phase);
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < STEP / 16; i++) {
      wgmma_columns(Columns<FIRST>(), acc, a + 2 * i, b + 2 * i, 1);
      // A row of a stage is 128 bytes, a descriptor counts in 16.
      if constexpr (FIRST < T) wgmma_columns(Columns<T - FIRST>(), acc + FIRST / 2, a + 2 * i, b + 2 * i + FIRST * 8, 1);
    }
    wgmma_commit();
    if (step == 0) {
      // The tile before leaves shared memory while this one is multiplied.
      if (leads && sending) bulk_wait_read<0>(), mbarrier_arrive(sending);
      sending = 0;
    } else {
      // The batch before this one has ended: its stage is free, but for those in which results will lie.
      wgmma_wait<1>();
      if (HELD < 2 || step < steps - 1) ring.give_back(1);
    }
    ring.next();
  }
  const bool more = walk.step(following);
  wgmma_wait<0>();
#pragma unroll
  for (int i = 0; i < T / 2; i++) wgmma_keep(acc[i]);

  const int column = tile.column + warpgroup * Place<T, GATED>::COLUMNS, warp = threadIdx.x >> 5 & 3;
  const Staged<T, GATED> staged(ring, warpgroup);
  if (HELD == 0) ring.give_back(1);
  // What this warpgroup left beside the ring has gone. Both have read the stages that are held; small tiles after small tiles keep to their
  // own places, so neither waits for the other.
  if (leads) bulk_wait_read<0>();
  if (HELD > 0 || crossed) sync_threads(1, 256);
  else sync_threads(2 + warpgroup, 128);
  crossed = HELD > 0;
  // With two stages, each warpgroup has one for its results.
  if (HELD == 2) ring.give_back(warpgroup == 0 ? 2 : 1);
  staged.put(acc);
  fence_async_shared();
  sync_threads(2 + warpgroup, 128);
  if (warp == 1) staged.store_rest(out, tile, column);
  if (leads) staged.send(out, tile, column);
  if (HELD > 0) {
    const int mine = HELD == 2 && warpgroup == 1 ? 2 : 1;
    if (warp != 0) ring.give_back(mine);
    sending = ring.empty_before(mine);
  }
  return more;
}

template <bool GATED>
DEVICE void grouped_gemm(const TensorMap *x_map, const TensorMap *x_large, const TensorMap *w_map, const Out &out, const int4 *tiles, const int *tile_count, int k,
                         int chunk) {
  DYNAMIC_SHARED(u8, raw);
  // Swizzled boxes lie at multiples of 1024 bytes.
  const u32 base = (shared_address(raw) + 1023u) & ~1023u, apart = base + STAGES * STAGE_BYTES, full = apart + APART_BYTES;
  Ring ring{base, apart, full, full + STAGES * 8, 0, 0};

  if (threadIdx.x == 0) {
    tma_prefetch_map(x_map);
    tma_prefetch_map(x_large);
    tma_prefetch_map(w_map);
    tma_prefetch_map(out.boxes32);
    tma_prefetch_map(out.boxes8);
    for (int s = 0; s < STAGES; s++) {
      mbarrier_init(ring.full + 8 * s, 1);
      mbarrier_init(ring.empty + 8 * s, CONSUMER_WARPS);
    }
    mbarrier_init_fence();
  }
  __syncthreads();
  allow_dependents();
  wait_for_predecessors();

  // Two at least, for the places of results; past the end of k are zeros.
  const int steps = max2(2, (k + STEP - 1) / STEP), warpgroup = threadIdx.x >> 7;
  Walk walk(tiles, *tile_count, out.n, GATED ? W_ROWS / 2 : W_ROWS, chunk);
  Tile tile;
  if (warpgroup == 0) {
    registers_decrease<40>();
    if (threadIdx.x == 0) {
      while (walk.step(tile)) {
        const int boxes = (tile.rows + BOX_ROWS - 1) / BOX_ROWS;
        for (int step = 0; step < steps; step++) {
          const u32 to = ring.at(), barrier = ring.full + 8 * ring.stage;
          mbarrier_wait(ring.empty + 8 * ring.stage, ring.phase ^ 1);
          mbarrier_arrive_expect(barrier, W_BYTES + boxes * BOX_BYTES);
          // 8 gate rows, the 8 matching up rows, the next 8 gate rows, ...
          if (GATED) tma_load_5d(to, w_map, step * STEP, 0, 0, tile.column / 8, tile.group, barrier);
          else tma_load_3d(to, w_map, step * STEP, tile.column, tile.group, barrier);
          int box = 0;
          constexpr int LARGE = LARGE_BOX_ROWS / BOX_ROWS;
          for (; box + LARGE <= boxes; box += LARGE)
            tma_load_2d(to + W_BYTES + box * BOX_BYTES, x_large, step * STEP, tile.first + box * BOX_ROWS, barrier);
          for (; box < boxes; box++) tma_load_2d(to + W_BYTES + box * BOX_BYTES, x_map, step * STEP, tile.first + box * BOX_ROWS, barrier);
          ring.next();
        }
      }
    }
  } else {
    registers_increase<232>();
    // The barrier of the stage that results are being sent from; 0: none.
    u32 sending = 0;
    // The tile before had results in places that both warpgroups use.
    bool crossed = false;
    bool more = walk.step(tile);
    while (more) {
      Tile following = tile;
#define UP_TO(T)                                                                                                                \
  if (tile.rows <= T) more = multiply_tile<T, GATED>(ring, steps, warpgroup - 1, walk, tile, following, out, sending, crossed); \
  else
      // Groups are cut into even tiles, so most have more than 160 rows; with fewer, reading W takes longer than multiplying 160.
      UP_TO(16)
      UP_TO(32)
      UP_TO(64)
      UP_TO(160)
      UP_TO(176)
      UP_TO(192)
      UP_TO(208)
      UP_TO(224)
      UP_TO(240)
      UP_TO(256)
      UP_TO(272)
      more = multiply_tile<MOST_ROWS, GATED>(ring, steps, warpgroup - 1, walk, tile, following, out, sending, crossed);
#undef UP_TO
      tile = following;
    }
    // Shared memory must last until it has been read.
    if ((threadIdx.x & 127) == 0) bulk_wait_read<0>();
  }
}

} // namespace

#define GROUPED_GEMM(NAME, GATED)                                                                                               \
  extern "C" __global__ void __launch_bounds__(384, 1)                                                                          \
  NAME(const __grid_constant__ TensorMap x_map, const __grid_constant__ TensorMap x_large, const __grid_constant__ TensorMap w_map, \
       const __grid_constant__ TensorMap out32, const __grid_constant__ TensorMap out8, bf16 *out, i64 out_stride, const int4 *tiles, const int *tile_count, int n, int k, \
       int chunk) {                                                                                                             \
    grouped_gemm<GATED>(&x_map, &x_large, &w_map, Out{&out32, &out8, out, out_stride, n}, tiles, tile_count, k, chunk);                   \
  }

GROUPED_GEMM(grouped_gemm, false)
GROUPED_GEMM(grouped_gemm_gated, true)

#endif // sm_90a
