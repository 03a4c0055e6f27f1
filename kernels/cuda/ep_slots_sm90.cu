// Expert parallelism, low latency, the way there; see ep_low_latency.cuh.
//
// ep_slots_*: dispatch. A block a token. One wave of loads first: the group's record, all ids, the row, the epoch, who is ready. Slot of
//   the token at each member = its tokens sent there before (every block counts them from all ids, they are few). Ids, weights and the
//   source token go as words of 8 bytes that carry the epoch: no fence, and their readers look at nothing else; the row, quantised in
//   registers meanwhile, goes to the slot, then a flag of that slot by a warp that does nothing else. The
//   last block tells each member how many come.
//   Then every block waits for the ids alone and the blocks share out the lists (slots of each expert in slot order, counts, ranges of
//   sources), while rows are still on their way; a slot's block unpacks its words and waits for its row.
// Versions and times: docs/performance-ep-gpu.md.
#include "ep_low_latency.cuh"

using namespace ep;

namespace {

/// Words that a thread loads before it looks at the first.
constexpr int BATCH = 4;
/// Half of a word of ids: no expert of this member.
constexpr u32 NONE = 0xffffu;

DEVICE bool has_come(u64 word, u32 epoch) { return (int)((u32)(word >> 32) - epoch) >= 0; }
DEVICE u64 tagged(u32 epoch, u32 value) { return (u64)epoch << 32 | value; }

/// A word that carries its epoch. 0 when it took too long.
DEVICE u32 wait_word(const Group *g, const u64 *word, u32 epoch, int phase, int peer, int parity, int place) {
  u32 spin = 0;
  u64 end = 0;
  while (true) {
    const u64 seen = ld_relaxed_sys(word);
    if (has_come(seen, epoch)) return (u32)seen;
    if (give_up(g, spin, end, phase, peer, parity, epoch, (u32)(seen >> 32), place)) return 0;
  }
}

/// Rows of 16 bytes a piece. `Piece`: what a thread holds of the row between its load and its store.
struct CopyRow {
  const char *x;
  i64 stride;
  int pieces;
  struct Piece {
    uint4 bits;
  };

  DEVICE Piece load(int token, int c) const {
    Piece p{make_uint4(0, 0, 0, 0)};
    if (c < pieces) p.bits = reinterpret_cast<const uint4 *>(x + token * stride)[c];
    return p;
  }
  DEVICE void encode(Piece &) const {}
  DEVICE void store(char *to, int c, const Piece &p) const { st_peer(to + 16 * c, p.bits); }
};

/// Rows of 16 elements a piece, quantised.
template <class In> struct QuantisedRow {
  const In *x;
  i64 stride;
  int pieces;
  bool round_scales;
  struct Piece {
    uint4 raw[sizeof(In)], bits;
    float scale;
  };

  /// As it lies in memory: converted only when other loads are on their way.
  DEVICE Piece load(int token, int c) const {
    Piece p;
    const uint4 *from = reinterpret_cast<const uint4 *>(x + token * stride) + c * (int)sizeof(In);
#pragma unroll
    for (int i = 0; i < (int)sizeof(In); i++) p.raw[i] = c < pieces ? from[i] : make_uint4(0, 0, 0, 0);
    return p;
  }
  /// All lanes of the warp call it.
  DEVICE void encode(Piece &p) const {
    constexpr int N = Vec<In>::N;
    float v[16];
#pragma unroll
    for (int i = 0; i < (int)sizeof(In); i++) {
      float part[N];
      unpack16(p.raw[i], part, (const In *)nullptr);
#pragma unroll
      for (int j = 0; j < N; j++) v[i * N + j] = part[j];
    }
    p.bits = quantise16(v, round_scales, p.scale);
  }
  DEVICE void store(char *to, int c, const Piece &p) const {
    st_peer(to + 16 * c, p.bits);
    if ((c & 7) == 0) *reinterpret_cast<float *>(to + 16 * pieces + (c >> 3) * 4) = p.scale;
  }
};

template <class Row> DEVICE void store_row(const Group *g, int parity, const Row &row, u32 mask, const int *slot, int c, const typename Row::Piece &p) {
  if (c >= row.pieces) return;
  // Peers first: their rows have a way to go.
  const u32 me = mask & 1u << (int)g->member;
  for (u32 left = mask & ~me; left; left &= left - 1) {
    const int d = __ffs(left) - 1;
    row.store(at<char>(g, d, SLOTS, parity) + (i64)slot[d] * g->slot_stride, c, p);
  }
  if (me) row.store(mine<char>(g, SLOTS, parity) + (i64)slot[g->member] * g->slot_stride, c, p);
}

/// Sends the token of this block. `masks`: members of each token.
template <class Row>
DEVICE void send_token(const Group *g, int parity, u32 epoch, const Row &row, int t, typename Row::Piece &first, int id, float weight, const u32 *masks, int *slot) {
  const int size = (int)g->size, me = (int)g->member, top_k = (int)g->top_k, slots = (int)g->slots;
  const int tid = threadIdx.x, lane = lane_id(), warp = warp_id(), warps = blockDim.x >> 5;
  const int id_words = (top_k + 1) >> 1;
  const u32 mask = masks[t];
  for (int d = warp; d < size; d += warps) {
    const bool there = mask >> d & 1;
    int n = 0;
    if (there) {
      for (int begin = 0; begin < t; begin += 32)
        n += __popc(__ballot_sync(0xffffffffu, begin + lane < t && (masks[begin + lane] >> d & 1)));
      const int to = me * slots + n, base = (int)g->first_expert[d];
      const bool here = id >= base && id < (int)g->first_expert[d + 1];
      const u32 local = here ? (u32)(id - base) : NONE;
      const u32 pair = __shfl_sync(0xffffffffu, local, 2 * lane & 31) | __shfl_sync(0xffffffffu, local, (2 * lane + 1) & 31) << 16;
      u64 *ids = at<u64>(g, d, SLOT_WORDS, parity), *data = ids + (i64)size * slots * id_words + (i64)to * (top_k + 1);
      if (lane < id_words) st_relaxed_sys(ids + (i64)to * id_words + lane, tagged(epoch, pair));
      if (lane < top_k) st_relaxed_sys(data + lane, tagged(epoch, here ? __float_as_uint(weight) : 0u));
      if (lane == 0) st_relaxed_sys(data + top_k, tagged(epoch, (u32)t));
    }
    if (lane == 0) {
      slot[d] = me * slots + n;
      mine<int>(g, SLOT_TABLE, parity)[(i64)t * size + d] = there ? n : -1;
    }
  }
  __syncthreads();
  store_row(g, parity, row, mask, slot, tid, first);
  for (int begin = blockDim.x; begin < row.pieces; begin += blockDim.x) {
    typename Row::Piece p = row.load(t, begin + tid);
    row.encode(p);
    store_row(g, parity, row, mask, slot, begin + tid, p);
  }
  __syncthreads();
  // By the last warp: the others go on, they need not wait for its fence.
  if (warp == warps - 1 && lane < size && (mask >> lane & 1)) st_release_sys(at<u32>(g, lane, SLOT_FLAGS, parity) + slot[lane], epoch);
}

/// Threads that receive: all but the last warp, which raises flags and leaves.
DEVICE int receivers() { return blockDim.x > 32 ? (int)blockDim.x - 32 : (int)blockDim.x; }

/// Waits for the ids of all slots; a thread loads its words and their sources' counts together. `here`: u32 [slots of all, words], two
/// local experts a word.
DEVICE void await_ids(const Group *g, int parity, u32 epoch, u32 *here) {
  const int threads = receivers(), size = (int)g->size, slots = (int)g->slots, id_words = ((int)g->top_k + 1) >> 1;
  const int of_source = slots * id_words, all = size * of_source;
  const u64 *words = mine<u64>(g, SLOT_WORDS, parity), *counts = mine<u64>(g, SLOT_COUNTS, parity);
  for (int begin = threadIdx.x; begin < all; begin += BATCH * threads) {
    int source[BATCH], place[BATCH];
    u32 pending = 0, spin = 0;
    u64 end = 0;
#pragma unroll
    for (int j = 0; j < BATCH; j++) {
      const int i = begin + j * threads;
      source[j] = i / of_source, place[j] = (i - source[j] * of_source) / id_words;
      if (i >= all) continue;
      here[i] = NONE << 16 | NONE;
      if (lives(g, source[j])) pending |= 1u << j;
    }
    while (pending) {
      u64 count[BATCH], word[BATCH];
#pragma unroll
      for (int j = 0; j < BATCH; j++)
        if (pending >> j & 1) count[j] = ld_relaxed_sys(counts + source[j]), word[j] = ld_relaxed_sys(words + begin + j * threads);
      int missing = -1;
      u32 seen = 0;
      bool counted = false;
#pragma unroll
      for (int j = 0; j < BATCH; j++) {
        if (!(pending >> j & 1)) continue;
        const bool known = has_come(count[j], epoch);
        if (known && place[j] >= (int)(u32)count[j]) pending &= ~(1u << j);
        else if (known && has_come(word[j], epoch)) here[begin + j * threads] = (u32)word[j], pending &= ~(1u << j);
        else missing = j, counted = known, seen = (u32)((known ? word[j] : count[j]) >> 32);
      }
      if (missing < 0) break;
      int from = 0, at_place = 0;
#pragma unroll
      for (int j = 0; j < BATCH; j++)
        if (j == missing) from = source[j], at_place = counted ? place[j] : 0;
      if (give_up(g, spin, end, counted ? SLOT : SLOT_COUNT, from, parity, epoch, seen, at_place)) break;
    }
  }
}

/// Rows of one expert: its slots in order, and how many of each source. `votes`: u32 [size · groups of 32 slots].
DEVICE void list_expert(const Group *g, int parity, int e, const int *counts, const u32 *here, u32 *votes) {
  const int size = (int)g->size, top_k = (int)g->top_k, slots = (int)g->slots, locals = local_experts(g);
  const int lane = lane_id(), warp = warp_id(), warps = receivers() >> 5, all = size * slots;
  const int id_words = (top_k + 1) >> 1, of_source = (slots + 31) >> 5, groups = size * of_source;
  int *info = mine<int>(g, SLOT_INFO, parity), *slot_of_row = mine<int>(g, SLOT_OF_ROW, parity), *row_of_slot = mine<int>(g, ROW_OF_SLOT, parity);
  for (int group = warp; group < groups; group += warps) {
    const int s = group / of_source, j = (group - s * of_source) * 32 + lane;
    bool has = false;
    if (j < counts[s])
      for (int w = 0; w < id_words; w++) {
        const u32 pair = here[(s * slots + j) * id_words + w];
        has |= (pair & 0xffffu) == (u32)e || pair >> 16 == (u32)e;
      }
    const u32 vote = __ballot_sync(0xffffffffu, has);
    if (lane == 0) votes[group] = vote;
  }
  sync_threads(receivers());
  for (int group = warp; group < groups; group += warps) {
    const u32 vote = votes[group];
    if (vote == 0) continue;
    int before = 0;
    for (int q = lane; q < group; q += 32) before += __popc(votes[q]);
#pragma unroll
    for (int d = 16; d > 0; d >>= 1) before += __shfl_xor_sync(0xffffffffu, before, d);
    if (!(vote >> lane & 1)) continue;
    const int s = group / of_source, slot = s * slots + (group - s * of_source) * 32 + lane;
    const int row = e * all + before + __popc(vote & ((1u << lane) - 1));
    slot_of_row[row] = slot;
    for (int k = 0; k < top_k; k++)
      if ((here[slot * id_words + (k >> 1)] >> 16 * (k & 1) & 0xffffu) == (u32)e) row_of_slot[slot * top_k + k] = row;
  }
  for (int s = threadIdx.x; s < size; s += receivers()) {
    int begin = 0, n = 0;
    for (int q = 0; q < s * of_source; q++) begin += __popc(votes[q]);
    for (int q = s * of_source; q < (s + 1) * of_source; q++) n += __popc(votes[q]);
    info[size + locals + (e * size + s) * 2] = begin;
    info[size + locals + (e * size + s) * 2 + 1] = n;
    if (s == size - 1) info[size + e] = begin + n;
  }
}

/// Ids, weights and source token of a slot, a warp; then its row must be here.
DEVICE void unpack_slot(const Group *g, int parity, u32 epoch, int slot, const int *counts, const u32 *here) {
  const int top_k = (int)g->top_k, slots = (int)g->slots, id_words = (top_k + 1) >> 1, lane = lane_id(), s = slot / slots;
  const u64 *data = mine<u64>(g, SLOT_WORDS, parity) + g->size * slots * id_words + (i64)slot * (top_k + 1);
  const bool used = slot - s * slots < counts[s];
  if (lane < top_k) {
    const u32 id = used ? here[slot * id_words + (lane >> 1)] >> 16 * (lane & 1) & 0xffffu : NONE;
    const i64 to = (i64)slot * top_k + lane;
    mine<int>(g, SLOT_IDS, parity)[to] = id == NONE ? -1 : (int)id;
    mine<u32>(g, SLOT_WEIGHTS, parity)[to] = used ? wait_word(g, data + lane, epoch, SLOT, s, parity, slot - s * slots) : 0u;
    if (id == NONE) mine<int>(g, ROW_OF_SLOT, parity)[to] = -1;
  }
  if (lane == 0) {
    mine<int>(g, SLOT_TOKENS, parity)[slot] = used ? (int)wait_word(g, data + top_k, epoch, SLOT, s, parity, slot - s * slots) : -1;
    if (used) wait_flag(g, mine<u32>(g, SLOT_FLAGS, parity) + slot, epoch, SLOT, s, parity, slot - s * slots);
  }
}

DEVICE void receive_slots(const Group *g, int parity, u32 epoch, u32 *here) {
  BLOCK_SHARED(int, counts, MAX_MEMBERS);
  const int size = (int)g->size, slots = (int)g->slots, locals = local_experts(g), all = size * slots;
  const int tid = threadIdx.x, warps = receivers() >> 5;
  u32 *votes = here + all * (((int)g->top_k + 1) >> 1);
  await_ids(g, parity, epoch, here);
  if (tid < size)
    counts[tid] = lives(g, tid) ? (int)wait_word(g, mine<u64>(g, SLOT_COUNTS, parity) + tid, epoch, SLOT_COUNT, tid, parity, 0) : 0;
  sync_threads(receivers());
  if (blockIdx.x == 0 && tid < size) mine<int>(g, SLOT_INFO, parity)[tid] = counts[tid];
  for (int e = blockIdx.x; e < locals; e += gridDim.x) {
    if (e != (int)blockIdx.x) sync_threads(receivers());
    list_expert(g, parity, e, counts, here, votes);
  }
  for (int slot = blockIdx.x + warp_id() * gridDim.x; slot < all; slot += gridDim.x * warps) unpack_slot(g, parity, epoch, slot, counts, here);
}

/// Shared memory: u32 [tokens] masks, then u32 [slots of all, words] ids and [size · groups of 32 slots] votes.
/// `epoch_word` and `done`: of this rank, given so that they are looked at before the group's record is here.
template <class Row>
DEVICE void slots_kernel(const Group *given, int parity, u32 phases, u32 *epoch_word, const u32 *done, const Row &row, const Sent &sent, int top_k) {
  DYNAMIC_SHARED(u32, masks);
  BLOCK_SHARED(u64, words, GROUP_WORDS);
  BLOCK_SHARED(u32, before, 1);
  BLOCK_SHARED(int, slot, MAX_MEMBERS);
  const Group *g = reinterpret_cast<const Group *>(words);
  const int tid = threadIdx.x, lane = lane_id(), warp = warp_id(), warps = blockDim.x >> 5;
  const bool sends = phases & SEND;
  const int tokens = sends ? sent.tokens : 0, choices = tokens * top_k, t = blockIdx.x;
  allow_dependents();
  const Staged staged = load_group(given);
  wait_for_predecessors();

  const u32 epoch_before = tid == 0 ? ld_volatile(epoch_word) : 0;
  int ids[BATCH];
#pragma unroll
  for (int j = 0; j < BATCH; j++) {
    const int i = tid + j * blockDim.x, token = i / top_k;
    ids[j] = i < choices ? sent.ids[(i64)token * sent.ids_stride + (i - token * top_k)] : -1;
  }
  typename Row::Piece piece;
  int id = -1;
  float weight = 0.0f;
  if (t < tokens) {
    piece = row.load(t, tid);
    if (lane < top_k) id = sent.ids[(i64)t * sent.ids_stride + lane], weight = sent.weights[(i64)t * sent.weights_stride + lane];
  }
  for (int i = tid; i < tokens; i += blockDim.x) masks[i] = 0;
  const u32 ready = sends && tid < MAX_MEMBERS ? ld_acquire_sys(done + tid) : 0;
  store_group(given, staged, words);
  if (tid == 0) before[0] = epoch_before;
  __syncthreads();

  const int size = (int)g->size, experts = (int)g->experts;
  const u32 epoch = before[0] + (sends ? 1 : 0);
  if (sends) {
#pragma unroll
    for (int j = 0; j < BATCH; j++)
      if (ids[j] >= 0 && ids[j] < experts) atomicOr(masks + (tid + j * blockDim.x) / top_k, 1u << owner_of(g, ids[j]) & (u32)g->active);
    for (int i = tid + BATCH * blockDim.x; i < choices; i += blockDim.x) {
      const int token = i / top_k, e = sent.ids[(i64)token * sent.ids_stride + (i - token * top_k)];
      if (e >= 0 && e < experts) atomicOr(masks + token, 1u << owner_of(g, e) & (u32)g->active);
    }
    if (t < tokens) row.encode(piece);
    // Members have long told that they read what was in these slots before.
    if (tid < size && lives(g, tid) && (int)(ready - (epoch - 1)) < 0)
      wait_flag(g, mine<u32>(g, SLOT_DONE, parity) + tid, epoch - 1, SLOT_FREE, tid, parity);
    __syncthreads();
    if (blockIdx.x == gridDim.x - 1)
      for (int d = warp; d < size; d += warps) {
        int n = 0;
        for (int begin = 0; begin < tokens; begin += 32)
          n += __popc(__ballot_sync(0xffffffffu, begin + lane < tokens && (masks[begin + lane] >> d & 1)));
        if (lane == 0 && lives(g, d)) st_relaxed_sys(at<u64>(g, d, SLOT_COUNTS, parity) + g->member, tagged(epoch, (u32)n));
      }
    for (int next = t; next < tokens; next += gridDim.x) {
      if (next != t) {
        // Others may still be sending from what `slot` says.
        __syncthreads();
        piece = row.load(next, tid);
        row.encode(piece);
        id = -1;
        if (lane < top_k) id = sent.ids[(i64)next * sent.ids_stride + lane], weight = sent.weights[(i64)next * sent.weights_stride + lane];
      }
      send_token(g, parity, epoch, row, next, piece, id, weight, masks, slot);
    }
    // All blocks have read the epoch when the last one counts itself.
    if (tid == (int)blockDim.x - 32 && atomicAdd(state(g, COUNTER), 1u) == gridDim.x - 1) {
      *state(g, COUNTER) = 0;
      *epoch_word = epoch;
    }
  }
  // No barrier of the whole block from here on.
  if (phases & RECEIVE && tid < receivers()) receive_slots(g, parity, epoch, masks + tokens);
}

} // namespace

/// x_stride in bytes, `pieces` times 16 bytes a row.
extern "C" __global__ void __launch_bounds__(1024)
    ep_slots_copy(const Group *__restrict__ g, int parity, int phases, u32 *epoch, const u32 *done, int top_k, const char *x, i64 x_stride, int pieces,
                  const int *ids, int ids_stride, const float *weights, int weights_stride, int tokens) {
  slots_kernel(g, parity, phases, epoch, done, CopyRow{x, x_stride, pieces}, Sent{ids, ids_stride, weights, weights_stride, tokens}, top_k);
}

/// x_stride in elements, `pieces` times 16 elements a row.
#define SLOTS_FP8(NAME, IN)                                                                                                       \
  extern "C" __global__ void __launch_bounds__(1024)                                                                              \
  NAME(const Group *__restrict__ g, int parity, int phases, u32 *epoch, const u32 *done, int top_k, const IN *x, i64 x_stride,    \
       int pieces, int round_scales, const int *ids, int ids_stride, const float *weights, int weights_stride, int tokens) {      \
    slots_kernel(g, parity, phases, epoch, done, QuantisedRow<IN>{x, x_stride, pieces, round_scales != 0},                        \
                 Sent{ids, ids_stride, weights, weights_stride, tokens}, top_k);                                                  \
  }
SLOTS_FP8(ep_slots_fp8_bf16, bf16)
SLOTS_FP8(ep_slots_fp8_f32, float)
