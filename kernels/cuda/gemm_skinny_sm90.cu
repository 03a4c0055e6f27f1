// Products of few rows with large weights, bound by reading the weights: out[o, n] = x[i, :] · W[e][n, :], for one matrix and `count` rows (dense),
// for groups with a counter each (masked), or for the experts that a list of ids names (routed), where an expert without rows costs
// nothing. bf16 in, f32 sums, bf16 or f32 out. K % 64 = 0, 16-byte aligned rows of x.
//
// `_gated`: W is [2·N, K], gate rows first; out = silu(gate) · up, written where N columns are asked for.
//
// Algorithm: the weights take the side of 16 rows of mma m16n8k16, the tokens the side of 8. The work is a list of units: for each expert
// with rows, for each at most 8·TILES of them, every 16 rows of W (`_gated`: 8 gate rows and the 8 up rows that belong to them). Every
// block takes an equal, contiguous share, so it changes expert rarely. One thread feeds a ring with bulk tensor copies, each of 8 rows by
// 512 of k (8 KiB, two a stage; W seen as [K / 64][rows][64] so that one copy takes 1 KiB of each row; 128-byte swizzle, so ldmatrix has no
// bank conflicts), as far ahead as the ring goes, over
// units and experts. Eight warps share the k of each stage: warp w takes steps w, w + 8, ... of 16; at the end of a unit they add
// their parts through shared memory in a fixed order. The rows of x of an expert lie whole in shared memory, loaded when the expert changes.
// In routed mode every block groups the ids itself, in shared memory: no launch before, no scratch. All blocks must get the same lists,
// since an expert with many rows is several items and its units go to several blocks: lists are in ascending order of slots.
//
// Versions (times: docs/performance-cuda.md): 1. a lane a row with plain bulk copies of 1 KiB: the copies of a warp's lanes are issued one
// after the other, some 60 cycles each, which is less than the memory gives. 2. this one.
#include "elements.cuh"
#include "wgmma.cuh"

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900

namespace {

constexpr int CHUNK = 512, HALF_STAGE = 8 * CHUNK * 2, STAGE = 2 * HALF_STAGE, WARPS = 8, THREADS = WARPS * 32;
/// Floats between tokens of the parts that warps add: 16 rows and 4 to spread banks.
constexpr int PART = 20;
enum Mode { DENSE = 0, MASKED = 1, ROUTED = 2 };

struct Problem {
  const bf16 *x;
  i64 x_stride;
  const TensorMap *w;
  int w_rows; // between matrices
  u8 *out;
  i64 out_stride;
  const float *bias;
  /// Masked: a counter a group. Routed: ids, `ids_stride` between rows of `top_k`.
  const int *index;
  int *faults;
  int mode, count, experts, top_k, ids_stride;
  /// Routed: row of x = slot / x_divisor. Masked: rows between groups; at most `count` of them are looked at.
  int x_divisor;
  int n, k, tile_rows, stages, accumulate;
};

/// What a block knows about the work; in shared memory before the ring. Sizes: see skinnySharedBytes in ops/skinny.ts.
struct Plan {
  u16 *cursors; // [warps + 1][experts] rows of each expert in each warp's share of the slots, then where the next one goes
  u16 *list;    // [count] slots by expert
  u16 *ids;     // [count] the expert of each slot, 0xffff for none
  u16 *expert;  // [items]
  u16 *first;   // [items] first place of the item in its expert's list (routed: in the whole list)
  u16 *rows;    // [items]
};

/// A block-wide exclusive scan of one number a thread over THREADS + 32 threads; `scratch` holds 16 ints.
DEVICE int scan(int value, int *scratch, int &total) {
  int sum = value;
#pragma unroll
  for (int d = 1; d < 32; d <<= 1) {
    const int from = __shfl_up_sync(0xffffffffu, sum, d);
    if (lane_id() >= d) sum += from;
  }
  __syncthreads();
  if (lane_id() == 31) scratch[warp_id()] = sum;
  __syncthreads();
  int before = 0;
  total = 0;
  for (int w = 0; w <= WARPS; w++) {
    if (w < warp_id()) before += scratch[w];
    total += scratch[w];
  }
  return before + sum - value;
}

/// Calls visit(slot, expert, place among the lanes with that expert, number of those lanes) for this warp's share of the slots in order;
/// expert is −1 for none. `expert_of(slot)` finds it.
template <class Of, class Visit> DEVICE void for_share(int count, Of expert_of, Visit visit) {
  constexpr int SHARES = WARPS + 1;
  const int share = ((count + SHARES - 1) / SHARES + 31) & ~31, begin = warp_id() * share, end = min2(begin + share, count);
  for (int at = begin; at < end; at += 32) {
    const int slot = at + lane_id(), e = slot < end ? expert_of(slot) : -1;
    const u32 same = __match_any_sync(0xffffffffu, e);
    visit(slot, e, __popc(same & ((1u << lane_id()) - 1)), __popc(same));
  }
}

/// Makes lists and items. Returns the number of items. Every thread of the block takes part.
DEVICE int make_plan(const Problem &p, const Plan &plan, int capacity, int *scratch) {
  const int threads = THREADS + 32;
  if (p.mode == DENSE) {
    const int items = (p.count + capacity - 1) / capacity;
    for (int i = threadIdx.x; i < items; i += threads) {
      plan.expert[i] = 0;
      plan.first[i] = (u16)(i * capacity);
      plan.rows[i] = (u16)min2(capacity, p.count - i * capacity);
    }
    __syncthreads();
    return items;
  }
  u16 *const mine = plan.cursors + warp_id() * p.experts;
  if (p.mode == ROUTED) {
    for (int i = threadIdx.x; i < (WARPS + 1) * p.experts; i += threads) plan.cursors[i] = 0;
    __syncthreads();
    auto read = [&](int slot) {
      int e = p.index[(i64)(slot / p.top_k) * p.ids_stride + slot % p.top_k];
      if (e >= p.experts) {
        if (blockIdx.x == 0) el::fault(p.faults, el::FAULT_EXPERT, e);
        e = -1;
      }
      plan.ids[slot] = (u16)max2(e, -1);
      return max2(e, -1);
    };
    for_share(p.count, read, [&](int, int e, int place, int lanes) {
      if (e >= 0 && place == 0) mine[e] = (u16)(mine[e] + lanes);
      __syncwarp();
    });
    __syncthreads();
  }
  auto rows_of = [&](int e) {
    if (p.mode == MASKED) return min2(max2(p.index[e], 0), min2(p.count, p.x_divisor));
    int n = 0;
    for (int w = 0; w <= WARPS; w++) n += plan.cursors[w * p.experts + e];
    return n;
  };
  // Thread t looks at the experts from t · each on.
  const int each = (p.experts + threads - 1) / threads, begin = min2((int)threadIdx.x * each, p.experts), end = min2(begin + each, p.experts);
  int rows = 0, items = 0;
  for (int e = begin; e < end; e++) {
    const int n = rows_of(e);
    rows += n, items += (n + capacity - 1) / capacity;
  }
  int total_rows, total_items;
  int place = scan(rows, scratch, total_rows);
  int item = scan(items, scratch, total_items);
  for (int e = begin; e < end; e++) {
    const int n = rows_of(e);
    for (int at = 0; at < n; at += capacity, item++) {
      plan.expert[item] = (u16)e;
      plan.first[item] = (u16)(p.mode == ROUTED ? place + at : at);
      plan.rows[item] = (u16)min2(capacity, n - at);
    }
    if (p.mode == ROUTED)
      for (int w = 0; w <= WARPS; w++) {
        const int there = plan.cursors[w * p.experts + e];
        plan.cursors[w * p.experts + e] = (u16)place;
        place += there;
      }
  }
  __syncthreads();
  if (p.mode == ROUTED) {
    auto again = [&](int slot) { return plan.ids[slot] == 0xffff ? -1 : (int)plan.ids[slot]; };
    for_share(p.count, again, [&](int slot, int e, int place, int lanes) {
      const int at = e >= 0 ? mine[e] : 0;
      if (e >= 0) plan.list[at + place] = (u16)slot;
      __syncwarp();
      if (e >= 0 && place == 0) mine[e] = (u16)(at + lanes);
      __syncwarp();
    });
    __syncthreads();
  }
  return total_items;
}

template <int TILES, bool GATED, class Out> DEVICE void skinny(const Problem &p, int items_room) {
  constexpr int CAPACITY = 8 * TILES;
  DYNAMIC_SHARED(u8, raw);
  // Swizzled boxes lie at multiples of 1024 bytes.
  u8 *const shared = raw + (-shared_address(raw) & 1023u);
  const int lane = lane_id(), warp = warp_id();
  const int x_pitch = p.k * 2 + 16;
  // Layout: ring | x | parts (two halves, or one for 32 rows) | barriers | plan
  constexpr int PART_FLOATS = WARPS * CAPACITY * PART, PART_HALVES = TILES <= 2 ? 2 : 1;
  u8 *const x_rows = shared + p.stages * STAGE;
  float *const parts = reinterpret_cast<float *>(x_rows + CAPACITY * x_pitch);
  u64 *const barriers = reinterpret_cast<u64 *>(parts + PART_HALVES * PART_FLOATS);
  int *const scratch = reinterpret_cast<int *>(barriers + 2 * p.stages);
  Plan plan;
  plan.cursors = reinterpret_cast<u16 *>(scratch + 16);
  plan.expert = plan.cursors + (p.mode == ROUTED ? (WARPS + 1) * p.experts : 0);
  plan.first = plan.expert + items_room;
  plan.rows = plan.first + items_room;
  plan.list = plan.rows + items_room;
  plan.ids = plan.list + p.count;
  const u32 ring = shared_address(shared), full = shared_address(barriers), empty = full + 8 * p.stages;
  if (threadIdx.x == 0) {
    for (int s = 0; s < p.stages; s++) {
      mbarrier_init(full + 8 * s, 1);
      mbarrier_init(empty + 8 * s, WARPS);
    }
    mbarrier_init_fence();
  }
  const int items = make_plan(p, plan, CAPACITY, scratch); // has barriers
  __syncthreads();

  const int rows_of_unit = GATED ? 8 : p.tile_rows, units_of_item = (p.n + rows_of_unit - 1) / rows_of_unit;
  const i64 units = (i64)items * units_of_item;
  const int begin = (int)(units * blockIdx.x / gridDim.x), end = (int)(units * (blockIdx.x + 1) / gridDim.x);
  int stage = 0;
  u32 phase = 0;

  if (warp == WARPS) {
    if (lane == 0) {
      tma_prefetch_map(p.w);
      const u64 policy = policy_evict_first();
      const bool two = GATED || rows_of_unit == 16;
      for (int unit = begin; unit < end; unit++) {
        const int item = unit / units_of_item, first = plan.expert[item] * p.w_rows + unit % units_of_item * rows_of_unit;
        for (int at = 0; at < p.k; at += CHUNK) {
          const u32 to = ring + stage * STAGE, barrier = full + 8 * stage;
          mbarrier_wait(empty + 8 * stage, phase ^ 1);
          mbarrier_arrive_expect(barrier, two ? STAGE : HALF_STAGE);
          // Rows past this matrix's last are read along and never stored.
          tma_load_3d_hint(to, p.w, 0, first, at / 64, barrier, policy);
          if (two) tma_load_3d_hint(to + HALF_STAGE, p.w, 0, first + (GATED ? p.n : 8), at / 64, barrier, policy);
          if (++stage == p.stages) stage = 0, phase ^= 1;
        }
      }
    }
    return;
  }

  const u32 x_at = shared_address(x_rows);
  // Step s of a chunk is pieces 2 · (s % 4) and the next of box row s / 4; this warp's steps are 8 apart, so only s / 4 moves, by 2.
  const u32 a_lane = (lane >> 3 & 1) * HALF_STAGE + (warp >> 2) * 1024 + (lane & 7) * 128 +
                     ((((warp & 3) * 2 + (lane >> 4)) ^ (lane & 7)) << 4);
  const u32 b_lane = (lane & 7) * x_pitch + (lane >> 3 & 1) * 16;
  int loaded = -1, rows = 0;
  for (int unit = begin; unit < end; unit++) {
    const int item = unit / units_of_item, first = unit % units_of_item * rows_of_unit;
    const int at_list = plan.first[item], expert = plan.expert[item];
    if (item != loaded) {
      rows = plan.rows[item];
      if (loaded >= 0) named_barrier_sync(1, THREADS); // nobody reads the rows before
      loaded = item;
      const int pieces = p.k / 8;
      for (int i = threadIdx.x; i < rows * pieces; i += THREADS) {
        const int r = i / pieces, c = i % pieces;
        i64 source = at_list + r;
        if (p.mode == ROUTED) source = plan.list[at_list + r] / p.x_divisor;
        else if (p.mode == MASKED) source += (i64)expert * p.x_divisor;
        cp_async16(x_at + r * x_pitch + c * 16, p.x + source * p.x_stride + c * 8);
      }
      cp_async_commit();
      cp_async_wait<0>();
      named_barrier_sync(1, THREADS);
    }
    float acc[TILES][4];
#pragma unroll
    for (int t = 0; t < TILES; t++) acc[t][0] = acc[t][1] = acc[t][2] = acc[t][3] = 0.0f;
    for (int at = 0; at < p.k; at += CHUNK) {
      const int steps = min2(CHUNK, p.k - at) / 16;
      mbarrier_wait(full + 8 * stage, phase);
      const u32 w_at = ring + stage * STAGE + a_lane, x_chunk = x_at + at * 2 + b_lane;
#pragma unroll
      for (int i = 0; i < CHUNK / 16 / WARPS; i++) {
        const int step = warp + i * WARPS;
        if (step < steps) {
          u32 a[4], b[2];
          ldmatrix_x4(a, w_at + i * 2048);
#pragma unroll
          for (int t = 0; t < TILES; t++)
            if (t == 0 || 8 * t < rows) {
              ldmatrix_x2(b, x_chunk + 8 * t * x_pitch + step * 32);
              mma_bf16(acc[t], a, b[0], b[1]);
            }
        }
      }
      __syncwarp();
      if (lane == 0) mbarrier_arrive(empty + 8 * stage);
      if (++stage == p.stages) stage = 0, phase ^= 1;
    }
    float *const part = parts + (PART_HALVES == 2 ? (unit & 1) * PART_FLOATS : 0);
    if (PART_HALVES == 1) named_barrier_sync(1, THREADS); // the unit before has been added up
    {
      float *const to = part + warp * CAPACITY * PART + (lane & 3) * 2 * PART + (lane >> 2);
#pragma unroll
      for (int t = 0; t < TILES; t++)
        if (t == 0 || 8 * t < rows) {
          to[8 * t * PART] = acc[t][0];
          to[(8 * t + 1) * PART] = acc[t][1];
          to[8 * t * PART + 8] = acc[t][2];
          to[(8 * t + 1) * PART + 8] = acc[t][3];
        }
    }
    named_barrier_sync(1, THREADS);
    constexpr int WIDTH = GATED ? 8 : 16;
    for (int i = threadIdx.x; i < rows * WIDTH; i += THREADS) {
      const int token = i / WIDTH, row = i % WIDTH;
      if (first + row >= p.n || row >= rows_of_unit) continue;
      float sum = 0.0f, up = 0.0f;
#pragma unroll
      for (int w = 0; w < WARPS; w++) {
        sum += part[(w * CAPACITY + token) * PART + row];
        if (GATED) up += part[(w * CAPACITY + token) * PART + row + 8];
      }
      if (GATED) sum = sum / (1.0f + expf(-sum)) * up;
      i64 target = at_list + token;
      if (p.mode == ROUTED) target = plan.list[at_list + token];
      else if (p.mode == MASKED) target += (i64)expert * p.x_divisor;
      Out *const y = reinterpret_cast<Out *>(p.out) + target * p.out_stride + first + row;
      if (p.bias) sum += p.bias[first + row];
      if (p.accumulate) sum += ldF(y);
      stF(y, sum);
    }
  }
}

} // namespace

#define SKINNY(NAME, TILES, GATED, OUT)                                                                                         \
  extern "C" __global__ void __launch_bounds__(THREADS + 32, 1)                                                                 \
  NAME(const __grid_constant__ TensorMap w, const bf16 *x, i64 x_stride, u8 *out, i64 out_stride, const float *bias, const int *index,     \
       int *faults, int mode, int count, int experts, int top_k, int ids_stride, int x_divisor, int n, int k, int tile_rows, int stages,     \
       int accumulate, int items_room, int w_rows) {                                                                                        \
    Problem p{x, x_stride, &w, w_rows, out, out_stride, bias, index, faults, mode, count, experts, top_k, ids_stride, x_divisor,        \
              n, k, tile_rows, stages, accumulate};                                                                             \
    skinny<TILES, GATED, OUT>(p, items_room);                                                                                   \
  }

SKINNY(skinny8_bf16, 1, false, bf16)
SKINNY(skinny16_bf16, 2, false, bf16)
SKINNY(skinny32_bf16, 4, false, bf16)
SKINNY(skinny8_f32, 1, false, float)
SKINNY(skinny16_f32, 2, false, float)
SKINNY(skinny32_f32, 4, false, float)
SKINNY(skinny8_gated_bf16, 1, true, bf16)
SKINNY(skinny16_gated_bf16, 2, true, bf16)
SKINNY(skinny32_gated_bf16, 4, true, bf16)

#endif // sm_90
