// Expert parallelism, low latency: fixed slots, nothing counted first, one kernel there and one back, both fit for graphs.
//
// ep_slots_*: dispatch. A block a token. Slot of the token at each member = its tokens sent there before (every block counts them from
//   all ids, they are few); the row, quantised in registers, ids, weights and source token go to the slot, then a flag of that slot.
//   Block 0 tells each member how many come. Then every block waits for all slots of this rank (word by word, many threads), and the
//   blocks share out the lists: slots of each expert in slot order, counts, ranges of sources.
// ep_back_*: combine. A block a received slot, peers' slots first: Σ over choices, ascending, of weight · expert row (reduce
//   'sender'), or rows as they are ('partials', or one a choice: 'origin'), straight to the origin, then a flag of that row. Then a
//   block a token of this rank: waits for its rows and adds them: members ascending, or choices with weights.
// `phases`: 1 sends, 2 receives, 3 both in one launch.
// A slot is written again two results later: a member sends only when the destination has read its slots (SLOT_DONE), told long before.
// Blocks: any number of threads that is a multiple of 32; the host takes as many as a row has pieces.
// Versions and times: docs/performance-cuda.md.
#include "ep.cuh"

using namespace ep;

namespace {

struct Sent {
  const int *ids;
  int ids_stride;
  const float *weights;
  int weights_stride;
  int tokens;
};

constexpr u32 SEND = 1, RECEIVE = 2;

/// Writes the row of this block's token to its slots. All threads call it.
struct CopyRow {
  const char *x;
  i64 stride;
  int pieces; // of 16 bytes

  DEVICE void send(const Group *g, int parity, int token, u32 mask, const int *slot) const {
    const uint4 *from = reinterpret_cast<const uint4 *>(x + token * stride);
    for (int c = threadIdx.x; c < pieces; c += blockDim.x) {
      const uint4 v = from[c];
      for (u32 left = mask; left; left &= left - 1) {
        const int d = __ffs(left) - 1;
        st_peer(at<char>(g, d, SLOTS, parity) + (i64)slot[d] * g->slot_stride + 16 * c, v);
      }
    }
  }
};

template <class In> struct QuantisedRow {
  const In *x;
  i64 stride;
  int pieces; // of 16 elements
  bool round_scales;

  DEVICE void send(const Group *g, int parity, int token, u32 mask, const int *slot) const {
    const In *from = x + token * stride;
    const int rounded = (pieces + 31) & ~31;
    for (int c = threadIdx.x; c < rounded; c += blockDim.x) {
      float v[16], scale;
      load16(from, c, c < pieces, v);
      const uint4 q = quantise16(v, round_scales, scale);
      if (c >= pieces) continue;
      for (u32 left = mask; left; left &= left - 1) {
        const int d = __ffs(left) - 1;
        char *to = at<char>(g, d, SLOTS, parity) + (i64)slot[d] * g->slot_stride;
        st_peer(to + 16 * c, q);
        if ((c & 7) == 0) *reinterpret_cast<float *>(to + 16 * pieces + (c >> 3) * 4) = scale;
      }
    }
  }
};

/// Shared memory of ep_slots: u32 [tokens] masks, then u16 [members · slots, topK] ids.
template <class Row> DEVICE void send_slots(const Group *g, int parity, u32 epoch, const Row &row, const Sent &sent, u32 *masks) {
  BLOCK_SHARED(int, slot, MAX_MEMBERS);
  const int size = (int)g->size, me = (int)g->member, top_k = (int)g->top_k, slots = (int)g->slots, experts = (int)g->experts;
  const int tid = threadIdx.x, lane = lane_id(), warp = warp_id(), warps = blockDim.x >> 5;
  const u8 *member_of = reinterpret_cast<const u8 *>(g->member_of);
  for (int t = tid; t < sent.tokens; t += blockDim.x) {
    u32 mask = 0;
    for (int k = 0; k < top_k; k++) {
      const int e = sent.ids[(i64)t * sent.ids_stride + k];
      if (e >= 0 && e < experts) mask |= 1u << member_of[e];
    }
    masks[t] = mask & (u32)g->active;
  }
  // Members have long told that they read what was in these slots before.
  if (tid < size && lives(g, tid)) wait_flag(g, mine<u32>(g, SLOT_DONE, parity) + tid, epoch - 1, SLOT_FREE, tid, parity);
  __syncthreads();
  if (blockIdx.x == 0) {
    for (int d = warp; d < size; d += warps) {
      int n = 0;
      for (int begin = 0; begin < sent.tokens; begin += 32)
        n += __popc(__ballot_sync(0xffffffffu, begin + lane < sent.tokens && (masks[begin + lane] >> d & 1)));
      if (lane == 0 && lives(g, d)) st_relaxed_sys(at<u64>(g, d, SLOT_COUNTS, parity) + me, (u64)epoch << 32 | (u32)n);
    }
  }
  int *table = mine<int>(g, SLOT_TABLE, parity);
  for (int t = blockIdx.x; t < sent.tokens; t += gridDim.x) {
    const u32 mask = masks[t];
    for (int d = warp; d < size; d += warps) {
      const bool there = mask >> d & 1;
      int n = 0;
      if (there)
        for (int begin = 0; begin < t; begin += 32)
          n += __popc(__ballot_sync(0xffffffffu, begin + lane < t && (masks[begin + lane] >> d & 1)));
      if (lane == 0) {
        slot[d] = me * slots + n;
        table[(i64)t * size + d] = there ? n : -1;
      }
    }
    __syncthreads();
    row.send(g, parity, t, mask, slot);
    for (int i = tid; i < size * 32; i += blockDim.x) {
      const int d = i >> 5, k = i & 31;
      if (!(mask >> d & 1)) continue;
      if (k < top_k) {
        const int id = sent.ids[(i64)t * sent.ids_stride + k];
        const bool here = id >= 0 && id >= (int)g->first_expert[d] && id < (int)g->first_expert[d + 1];
        const i64 to = (i64)slot[d] * top_k + k;
        at<int>(g, d, SLOT_IDS, parity)[to] = here ? id - (int)g->first_expert[d] : -1;
        at<float>(g, d, SLOT_WEIGHTS, parity)[to] = here ? sent.weights[(i64)t * sent.weights_stride + k] : 0.0f;
      }
      if (k == 0) at<int>(g, d, SLOT_TOKENS, parity)[slot[d]] = t;
    }
    __syncthreads();
    if (tid < size && (mask >> tid & 1)) {
      fence_sys();
      st_release_sys(at<u32>(g, tid, SLOT_FLAGS, parity) + slot[tid], epoch);
    }
    __syncthreads();
  }
}

DEVICE void receive_slots(const Group *g, int parity, u32 epoch, u16 *here) {
  BLOCK_SHARED(int, counts, MAX_MEMBERS);
  const int size = (int)g->size, top_k = (int)g->top_k, slots = (int)g->slots, locals = local_experts(g);
  const int tid = threadIdx.x, lane = lane_id(), warp = warp_id(), warps = blockDim.x >> 5, all = size * slots;
  if (tid < size)
    counts[tid] = lives(g, tid) ? wait_count(g, mine<u64>(g, SLOT_COUNTS, parity) + tid, epoch, SLOT_COUNT, tid, parity) : 0;
  __syncthreads();
  for (int i = tid; i < all; i += blockDim.x) {
    const int s = i / slots;
    if (i - s * slots < counts[s]) wait_flag(g, mine<u32>(g, SLOT_FLAGS, parity) + i, epoch, SLOT, s, parity, i - s * slots);
  }
  __syncthreads();
  int *ids = mine<int>(g, SLOT_IDS, parity);
  float *weights = mine<float>(g, SLOT_WEIGHTS, parity);
  int *row_of_slot = mine<int>(g, ROW_OF_SLOT, parity);
  for (int i = tid; i < all * top_k; i += blockDim.x) {
    const int slot = i / top_k, s = slot / slots;
    const bool used = slot - s * slots < counts[s];
    const int id = used ? (int)ld_volatile(reinterpret_cast<const u32 *>(ids) + i) : -1;
    here[i] = (u16)id;
    // One block writes what is nowhere.
    if (slot % (int)gridDim.x != (int)blockIdx.x) continue;
    if (id < 0) row_of_slot[i] = -1;
    if (used) continue;
    ids[i] = -1, weights[i] = 0.0f;
    if (i % top_k == 0) mine<int>(g, SLOT_TOKENS, parity)[slot] = -1;
  }
  __syncthreads();
  int *info = mine<int>(g, SLOT_INFO, parity), *slot_of_row = mine<int>(g, SLOT_OF_ROW, parity);
  if (blockIdx.x == 0 && tid < size) info[tid] = counts[tid];
  for (int e = blockIdx.x + warp * gridDim.x; e < locals; e += gridDim.x * warps) {
    int n = 0;
    for (int s = 0; s < size; s++) {
      const int begin = n;
      for (int j = 0; j < counts[s]; j += 32) {
        const int slot = s * slots + j + lane;
        bool has = false;
        if (j + lane < counts[s])
          for (int k = 0; k < top_k; k++) has |= here[slot * top_k + k] == e;
        const u32 votes = __ballot_sync(0xffffffffu, has);
        const int row = e * all + n + __popc(votes & ((1u << lane) - 1));
        if (has) {
          slot_of_row[row] = slot;
          for (int k = 0; k < top_k; k++)
            if (here[slot * top_k + k] == e) row_of_slot[slot * top_k + k] = row;
        }
        n += __popc(votes);
      }
      if (lane == 0) {
        info[size + locals + (e * size + s) * 2] = begin;
        info[size + locals + (e * size + s) * 2 + 1] = n - begin;
      }
    }
    if (lane == 0) info[size + e] = n;
  }
}

template <class Row> DEVICE void slots_kernel(const Group *g, int parity, u32 phases, const Row &row, const Sent &sent) {
  DYNAMIC_SHARED(u32, shared);
  const u32 epoch = *state(g, SLOT_EPOCH + parity) + (phases & SEND ? 1 : 0);
  if (phases & SEND) send_slots(g, parity, epoch, row, sent, shared);
  if (phases & RECEIVE) receive_slots(g, parity, epoch, reinterpret_cast<u16 *>(shared + (phases & SEND ? sent.tokens : 0)));
  if (phases & SEND)
    if (came_last(g, COUNTER) && threadIdx.x == 0) *state(g, SLOT_EPOCH + parity) = epoch;
}

} // namespace

/// x_stride in bytes, `pieces` times 16 bytes a row.
extern "C" __global__ void __launch_bounds__(1024)
    ep_slots_copy(const Group *__restrict__ g, int parity, int phases, const char *x, i64 x_stride, int pieces, const int *ids, int ids_stride,
                  const float *weights, int weights_stride, int tokens) {
  slots_kernel(g, parity, phases, CopyRow{x, x_stride, pieces}, Sent{ids, ids_stride, weights, weights_stride, tokens});
}

/// x_stride in elements, `pieces` times 16 elements a row.
#define SLOTS_FP8(NAME, IN)                                                                                                       \
  extern "C" __global__ void __launch_bounds__(1024)                                                                              \
  NAME(const Group *__restrict__ g, int parity, int phases, const IN *x, i64 x_stride, int pieces, int round_scales,              \
       const int *ids, int ids_stride, const float *weights, int weights_stride, int tokens) {                                    \
    slots_kernel(g, parity, phases, QuantisedRow<IN>{x, x_stride, pieces, round_scales != 0},                                     \
                 Sent{ids, ids_stride, weights, weights_stride, tokens});                                                         \
  }
SLOTS_FP8(ep_slots_fp8_bf16, bf16)
SLOTS_FP8(ep_slots_fp8_f32, float)

namespace {

/// What comes back: sums of weighted expert rows, rows by slot that are summed already, or one row a choice.
enum Back { EXPERTS_SUMMED = 0, PARTIAL_ROWS = 1, EVERY_CHOICE = 2 };

/// Σ of n rows with weights (shared memory), piece by piece of 16 bytes, to `to`.
template <class In, class Out> DEVICE void sum_rows(const char *const *rows, const float *weights, int n, Out *to, int pieces, bool peers) {
  constexpr int N = Vec<In>::N;
  for (int c = threadIdx.x; c < pieces; c += blockDim.x) {
    float sum[N] = {};
    for (int i = 0; i < n; i += 4) {
      uint4 v[4];
#pragma unroll
      for (int j = 0; j < 4; j++)
        if (i + j < n) v[j] = peers ? ld_peer(rows[i + j] + 16 * c) : ld_stream16(rows[i + j] + 16 * c);
#pragma unroll
      for (int j = 0; j < 4; j++)
        if (i + j < n) add_weighted(sum, v[j], weights[i + j], (const In *)nullptr);
    }
    store_sum(to + c * N, sum);
  }
}

/// Y: the experts' rows, W: rows on their way, Out: what comes of them.
template <class Y, class W, class Out>
DEVICE void back_kernel(const Group *g, int parity, u32 phases, int kind, const Y *y, i64 y_stride, Out *out, i64 out_stride, int width,
                        const Sent &own) {
  BLOCK_SHARED(const char *, rows, 32);
  BLOCK_SHARED(float, weights, 32);
  BLOCK_SHARED(int, count, 1);
  const u32 epoch = *state(g, SLOT_EPOCH + parity);
  const int size = (int)g->size, me = (int)g->member, top_k = (int)g->top_k, slots = (int)g->slots, tid = threadIdx.x;
  const int per_slot = kind == EVERY_CHOICE ? top_k : 1;
  if (phases & SEND) {
    const int *info = mine<int>(g, SLOT_INFO, parity), *row_of_slot = mine<int>(g, ROW_OF_SLOT, parity);
    const float *slot_weights = mine<float>(g, SLOT_WEIGHTS, parity);
    int all = 0;
    for (int s = 0; s < size; s++) all += info[s];
    for (int item = blockIdx.x; item < all * per_slot; item += gridDim.x) {
      int j = item / per_slot, s = (me + 1) % size;
      while (j >= info[s]) j -= info[s], s = (s + 1) % size;
      const int slot = s * slots + j, choice = item % per_slot;
      const int token = mine<int>(g, SLOT_TOKENS, parity)[slot];
      if (tid == 0) {
        int n = 0;
        if (kind == PARTIAL_ROWS) {
          rows[0] = reinterpret_cast<const char *>(y + (i64)slot * y_stride), weights[0] = 1.0f, n = 1;
        } else {
          const int first = kind == EVERY_CHOICE ? choice : 0, end = kind == EVERY_CHOICE ? choice + 1 : top_k;
          for (int k = first; k < end; k++) {
            const int row = row_of_slot[slot * top_k + k];
            if (row < 0) continue;
            rows[n] = reinterpret_cast<const char *>(y + (i64)row * y_stride);
            weights[n++] = kind == EVERY_CHOICE ? 1.0f : slot_weights[slot * top_k + k];
          }
        }
        count[0] = n;
      }
      __syncthreads();
      if (count[0] > 0) {
        const int place = (kind == EVERY_CHOICE ? choice : me) * slots + token;
        sum_rows<Y, W>(rows, weights, count[0], reinterpret_cast<W *>(at<char>(g, s, BACK, parity) + (i64)place * g->back_stride),
                       width / Vec<Y>::N, false);
        __syncthreads();
        if (tid == 0) {
          fence_sys();
          st_release_sys(at<u32>(g, s, BACK_FLAGS, parity) + place, epoch);
        }
      }
      __syncthreads();
    }
    // Slots have been read: their sources may fill them again.
    if (came_last(g, SENT_COUNTER)) raise(g, SLOT_DONE, parity, epoch);
  }
  if (phases & RECEIVE) {
    const int *table = mine<int>(g, SLOT_TABLE, parity);
    const u32 *flags = mine<u32>(g, BACK_FLAGS, parity);
    const u8 *member_of = reinterpret_cast<const u8 *>(g->member_of);
    for (int t = blockIdx.x; t < own.tokens; t += gridDim.x) {
      if (tid < 32) {
        // Lane i: member or choice i.
        bool comes = false;
        float weight = 1.0f;
        int from = tid;
        if (kind == EVERY_CHOICE) {
          const int e = tid < top_k ? own.ids[(i64)t * own.ids_stride + tid] : -1;
          if (e >= 0 && e < (int)g->experts) {
            from = member_of[e];
            comes = lives(g, from);
            weight = own.weights[(i64)t * own.weights_stride + tid];
          }
        } else {
          comes = tid < size && table[(i64)t * size + tid] >= 0;
        }
        const int place = tid * slots + t;
        if (comes) comes = wait_flag(g, flags + place, epoch, BACK_ROW, from, parity, t);
        const u32 mask = __ballot_sync(0xffffffffu, comes);
        if (comes) {
          const int i = __popc(mask & ((1u << tid) - 1));
          rows[i] = mine<char>(g, BACK, parity) + (i64)place * g->back_stride;
          weights[i] = weight;
        }
        if (tid == 0) count[0] = __popc(mask);
      }
      __syncthreads();
      sum_rows<W, Out>(rows, weights, count[0], out + t * out_stride, width / Vec<W>::N, true);
      __syncthreads();
    }
  }
}

} // namespace

/// y and out in elements between rows; ids and weights as they were sent (for `kind` 2).
#define BACK_KERNEL(NAME, Y, W, OUT)                                                                                                 \
  extern "C" __global__ void __launch_bounds__(1024)                                                                              \
  NAME(const Group *__restrict__ g, int parity, int phases, int kind, const Y *y, i64 y_stride, OUT *out, i64 out_stride,         \
       int width, const int *ids, int ids_stride, const float *weights, int weights_stride, int tokens) {                         \
    back_kernel<Y, W, OUT>(g, parity, phases, kind, y, y_stride, out, out_stride, width,                                             \
                        Sent{ids, ids_stride, weights, weights_stride, tokens});                                                  \
  }
BACK_KERNEL(ep_back_bf16_bf16_bf16, bf16, bf16, bf16)
BACK_KERNEL(ep_back_bf16_bf16_f32, bf16, bf16, float)
BACK_KERNEL(ep_back_f32_bf16_f32, float, bf16, float)
BACK_KERNEL(ep_back_f32_f32_f32, float, float, float)
