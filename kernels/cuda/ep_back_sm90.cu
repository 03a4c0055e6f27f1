// Expert parallelism, low latency, the way back; see ep_low_latency.cuh.
//
// ep_back_*: combine. A received slot is an item, cut into `parts`, peers' slots first: Σ over choices, ascending, of weight · expert row
//   (reduce 'sender'), or rows as they are ('partials', or one a choice: 'origin'), straight to the origin, then a flag of that part by a
//   warp that has nothing else to do. Then a part of a token of this rank is an item: its warps read what the own experts made of it, wait
//   for that part of the others' rows and add all: members ascending, or choices with weights.
// Versions and times: docs/performance-ep-gpu.md.
#include "ep_low_latency.cuh"

using namespace ep;

namespace {

/// What comes back: sums of weighted expert rows, rows by slot that are summed already, or one row a choice.
enum Back { EXPERTS_SUMMED = 0, PARTIAL_ROWS = 1, EVERY_CHOICE = 2 };

/// Adds 16 bytes from column c of rows: lane i of `mask` holds row i and its weight; lanes ascending. All lanes of the warp call it.
template <int AT_ONCE, class In, int N> DEVICE void add_rows(float (&sum)[N], u32 mask, const char *row, float weight, int c, bool valid, bool peers) {
  while (mask) {
    uint4 v[AT_ONCE];
    u32 coming = mask;
#pragma unroll
    for (int j = 0; j < AT_ONCE; j++) {
      if (!mask) break;
      const char *at = reinterpret_cast<const char *>(__shfl_sync(0xffffffffu, reinterpret_cast<u64>(row), __ffs(mask) - 1));
      mask &= mask - 1;
      if (valid) v[j] = peers ? ld_peer(at + c * sizeof(In)) : ld_stream16(at + c * sizeof(In));
    }
#pragma unroll
    for (int j = 0; j < AT_ONCE; j++) {
      if (!coming) break;
      const float w = __shfl_sync(0xffffffffu, weight, __ffs(coming) - 1);
      coming &= coming - 1;
      if (valid) add_weighted(sum, v[j], w, (const In *)nullptr);
    }
  }
}

/// Columns that a block walks through, 16 bytes of T a thread, whole warps at a time.
template <class T> struct Columns {
  static constexpr int N = Vec<T>::N;
  int begin, end;
  DEVICE int first() const { return begin + (int)threadIdx.x * N; }
  DEVICE int step() const { return (int)blockDim.x * N; }
  DEVICE int stop() const { return begin + (end - begin + N * 32 - 1) / (N * 32) * (N * 32); }
};

/// Rows of lanes of `mask` as they are, 16 bytes from column c of each, to rows of the same lanes.
template <class In, class W> DEVICE void copy_rows(u32 mask, const char *row, W *to, int c, bool valid) {
  constexpr int AT_ONCE = 4, N = Vec<In>::N;
  while (mask) {
    uint4 v[AT_ONCE];
    u32 going = mask;
#pragma unroll
    for (int j = 0; j < AT_ONCE; j++) {
      if (!mask) break;
      const char *at = reinterpret_cast<const char *>(__shfl_sync(0xffffffffu, reinterpret_cast<u64>(row), __ffs(mask) - 1));
      mask &= mask - 1;
      if (valid) v[j] = ld_stream16(at + c * sizeof(In));
    }
#pragma unroll
    for (int j = 0; j < AT_ONCE; j++) {
      if (!going) break;
      W *there = reinterpret_cast<W *>(__shfl_sync(0xffffffffu, reinterpret_cast<u64>(to), __ffs(going) - 1));
      going &= going - 1;
      float x[N] = {};
      if (valid) add_weighted(x, v[j], 1.0f, (const In *)nullptr), store_sum(there + c, x);
    }
  }
}

/// What a number becomes on its way.
template <class W> DEVICE float as_sent(float x) {
  if constexpr (sizeof(W) == 2) return to_float(to_bf16(x));
  else return x;
}

/// Rows of experts that a slot's choices took: lane k holds choice k's row, -1 where it has none here, and its weight.
struct TakenRows {
  int row;
  float weight;
};
DEVICE TakenRows rows_of(const int *row_of_slot, const float *weights, int kind, int slot, int top_k) {
  TakenRows found{-1, 1.0f};
  const int lane = lane_id();
  if (kind == PARTIAL_ROWS) {
    if (lane == 0) found.row = slot;
  } else if (lane < top_k) {
    found.row = row_of_slot[slot * top_k + lane];
    if (kind == EXPERTS_SUMMED) found.weight = weights[slot * top_k + lane];
  }
  return found;
}

/// Y: the experts' rows, W: rows on their way, Out: what comes of them. Rows are cut into `parts` of columns.
template <class Y, class W, class Out, bool CHOICES>
DEVICE void back_kernel(const Group *given, int parity, u32 phases, const u32 *epoch_word, int kind, int parts, const Y *y, i64 y_stride, Out *out,
                        i64 out_stride, int width, const Sent &own) {
  BLOCK_SHARED(u64, words, GROUP_WORDS);
  BLOCK_SHARED(u32, now, 1);
  const Group *g = reinterpret_cast<const Group *>(words);
  const int tid = threadIdx.x, lane = lane_id();
  allow_dependents();
  const Staged staged = load_group(given);
  wait_for_predecessors();
  const u32 epoch_now = tid == 0 ? ld_volatile(epoch_word) : 0;
  store_group(given, staged, words);
  if (tid == 0) now[0] = epoch_now;
  __syncthreads();
  const u32 epoch = now[0];
  const int size = (int)g->size, me = (int)g->member, top_k = (int)g->top_k, slots = (int)g->slots;
  const int span = ((width + parts - 1) / parts + 7) / 8 * 8;
  const int *row_of_slot = mine<int>(g, ROW_OF_SLOT, parity);
  const float *slot_weights = mine<float>(g, SLOT_WEIGHTS, parity);
  // The own rank's rows go no way at all when its sums are made in this launch; between two launches `y` may change.
  const bool direct = sizeof(Y) == sizeof(W) && phases == (SEND | RECEIVE);
  if (phases & SEND) {
    const int *tokens = mine<int>(g, SLOT_TOKENS, parity);
    const int items = (direct ? size - 1 : size) * slots * parts;
    // The last warp raises flags: it may have no columns, and the others need not wait for its fence.
    const bool raises = tid >= (int)blockDim.x - 32;
    for (int item = blockIdx.x; item < items; item += gridDim.x) {
      const int i = item / parts, part = item - i * parts;
      const int turn = i / slots, s = (me + 1 + turn) % size, slot = s * slots + (i - turn * slots);
      // All warps look, so that none waits for another.
      const int token = tokens[slot];
      const TakenRows from = rows_of(row_of_slot, slot_weights, kind, slot, top_k);
      const u32 mask = __ballot_sync(0xffffffffu, token >= 0 && from.row >= 0);
      if (mask == 0) continue;
      const int place = (CHOICES ? lane : me) * slots + token;
      const char *row = reinterpret_cast<const char *>(y + (i64)from.row * y_stride);
      W *to = reinterpret_cast<W *>(at<char>(g, s, BACK, parity) + (i64)place * g->back_stride);
      const Columns<Y> columns{part * span, min2(width, (part + 1) * span)};
      for (int c = columns.first(); c < columns.stop(); c += columns.step()) {
        if (CHOICES) {
          copy_rows<Y>(mask, row, to, c, c < columns.end);
          continue;
        }
        float sum[Vec<Y>::N] = {};
        add_rows<8, Y>(sum, mask, row, from.weight, c, c < columns.end, false);
        if (c < columns.end) store_sum(to + c, sum);
      }
      __syncthreads();
      if (raises) {
        fence_sys();
        const bool flags = CHOICES ? mask >> lane & 1 : lane == 0;
        if (flags) st_relaxed_sys(at<u32>(g, s, BACK_FLAGS, parity) + place * parts + part, epoch);
      }
    }
    // Slots have been read: their sources may fill them again. What this block read for them was read before its last fence.
    if (raises && lane == 0 && atomicAdd(state(g, SENT_COUNTER), 1u) == gridDim.x - 1) {
      *state(g, SENT_COUNTER) = 0;
      fence_sys();
      for (int m = 0; m < size; m++)
        if (lives(g, m)) st_relaxed_sys(at<u32>(g, m, SLOT_DONE, parity) + me, epoch);
    }
  }
  if (phases & RECEIVE) {
    const int *table = mine<int>(g, SLOT_TABLE, parity);
    const u32 *flags = mine<u32>(g, BACK_FLAGS, parity);
    for (int item = blockIdx.x; item < own.tokens * parts; item += gridDim.x) {
      const int t = item / parts, part = item - t * parts;
      const Columns<W> columns{part * span, min2(width, (part + 1) * span)};
      if (columns.first() >= columns.stop()) continue;
      // Lane i: member or choice i.
      bool comes = false;
      float weight = 1.0f;
      int from = lane;
      if (CHOICES) {
        const int e = lane < top_k ? own.ids[(i64)t * own.ids_stride + lane] : -1;
        if (e >= 0 && e < (int)g->experts) {
          from = owner_of(g, e);
          comes = lives(g, from);
          weight = own.weights[(i64)t * own.weights_stride + lane];
        }
      } else {
        comes = lane < size && table[(i64)t * size + lane] >= 0;
      }
      const int place = lane * slots + t;
      const char *row = mine<char>(g, BACK, parity) + (i64)place * g->back_stride;
      // Rows of the own experts lie in `y`: as they are, or to be summed.
      TakenRows mine_of{-1, 0.0f};
      const char *own_row = nullptr;
      const bool here = direct && comes && from == me;
      u32 own_mask = 0;
      if (direct) {
        const int own_slot = table[(i64)t * size + me];
        if (own_slot >= 0) {
          mine_of = rows_of(row_of_slot, slot_weights, kind, me * slots + own_slot, top_k);
          if (kind == EXPERTS_SUMMED) {
            own_row = reinterpret_cast<const char *>(y + (i64)mine_of.row * y_stride);
            own_mask = __ballot_sync(0xffffffffu, mine_of.row >= 0);
          } else {
            const int y_row = kind == PARTIAL_ROWS ? me * slots + own_slot : mine_of.row;
            if (here) row = reinterpret_cast<const char *>(y + (i64)y_row * y_stride);
          }
        }
      }
      const bool summed = direct && kind == EXPERTS_SUMMED;
      bool waits = true;
      u32 mask = 0;
      for (int c = columns.first(); c < columns.stop(); c += columns.step()) {
        constexpr int N = Vec<W>::N;
        const bool valid = c < columns.end;
        float part_sum[N] = {}, sum[N] = {};
        if constexpr (sizeof(Y) == sizeof(W)) add_rows<4, Y>(part_sum, own_mask, own_row, mine_of.weight, c, valid, false);
        if (waits) {
          // While own rows were read, others' came.
          if (comes && !here) comes = wait_flag(g, flags + place * parts + part, epoch, BACK_ROW, from, parity, t);
          mask = __ballot_sync(0xffffffffu, comes && !(summed && here));
          waits = false;
        }
        const u32 below = summed ? mask & ((1u << me) - 1) : mask;
        add_rows<4, W>(sum, below, row, weight, c, valid, true);
        if (own_mask)
#pragma unroll
          for (int i = 0; i < N; i++) sum[i] += as_sent<W>(part_sum[i]);
        add_rows<4, W>(sum, mask & ~below, row, weight, c, valid, true);
        if (valid) store_sum(out + t * out_stride + c, sum);
      }
    }
  }
}

} // namespace

/// y and out in elements between rows; ids and weights as they were sent (for `kind` 2). All members give the same `parts`.
#define BACK_KERNEL(NAME, Y, W, OUT)                                                                                              \
  extern "C" __global__ void __launch_bounds__(256, 4)                                                                            \
  NAME(const Group *__restrict__ g, int parity, int phases, const u32 *epoch, int kind, int parts, const Y *y, i64 y_stride,      \
       OUT *out, i64 out_stride, int width, const int *ids, int ids_stride, const float *weights, int weights_stride, int tokens) { \
    const Sent own{ids, ids_stride, weights, weights_stride, tokens};                                                             \
    if (kind == EVERY_CHOICE) back_kernel<Y, W, OUT, true>(g, parity, phases, epoch, kind, parts, y, y_stride, out, out_stride, width, own); \
    else back_kernel<Y, W, OUT, false>(g, parity, phases, epoch, kind, parts, y, y_stride, out, out_stride, width, own);          \
  }
BACK_KERNEL(ep_back_bf16_bf16_bf16, bf16, bf16, bf16)
BACK_KERNEL(ep_back_bf16_bf16_f32, bf16, bf16, float)
BACK_KERNEL(ep_back_f32_bf16_f32, float, bf16, float)
BACK_KERNEL(ep_back_f32_f32_f32, float, float, float)
