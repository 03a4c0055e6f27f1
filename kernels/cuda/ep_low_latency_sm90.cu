// Expert parallelism, low latency: fixed slots, nothing counted first, one kernel there and one back, both fit for graphs.
//
// ep_slots_*: dispatch. A block a token. One wave of loads first: the group's record, all ids, the row, the epoch, who is ready. Slot of
//   the token at each member = its tokens sent there before (every block counts them from all ids, they are few). Ids, weights and the
//   source token go as words of 8 bytes that carry the epoch: no fence, and their readers look at nothing else; the row, quantised in
//   registers meanwhile, goes to the slot, then a flag of that slot by a warp that does nothing else. The last block tells each member how many come.
//   Then every block waits for the ids alone and the blocks share out the lists (slots of each expert in slot order, counts, ranges of
//   sources), while rows are still on their way; a slot's block unpacks its words and waits for its row.
// ep_back_*: combine. A received slot is an item, cut into `parts`, peers' slots first: Σ over choices, ascending, of weight · expert row
//   (reduce 'sender'), or rows as they are ('partials', or one a choice: 'origin'), straight to the origin, then a flag of that part by a
//   warp that has nothing else to do. Then a part of a token of this rank is an item: its warps read what the own experts made of it, wait
//   for that part of the others' rows and add all: members ascending, or choices with weights.
// `phases`: 1 sends, 2 receives, 3 both in one launch.
// A slot is written again two results later: a member sends only when the destination has read its slots (SLOT_DONE), told long before.
// Launches may be programmatic: what is read before wait_for_predecessors is the group's record, written by the host.
// Versions and times: docs/performance-ep-gpu.md.
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
/// Words that a thread loads before it looks at the first.
constexpr int BATCH = 4;
/// Half of a word of ids: no expert of this member.
constexpr u32 NONE = 0xffffu;

constexpr int GROUP_WORDS = sizeof(Group) / 8;

/// The group's record on its way to shared memory: loaded first, stored when other loads are on their way too.
struct Staged {
  u64 word[3];
};
DEVICE Staged load_group(const Group *from) {
  Staged s;
#pragma unroll
  for (int j = 0; j < 3; j++) {
    const int i = threadIdx.x + j * blockDim.x;
    s.word[j] = i < GROUP_WORDS ? reinterpret_cast<const u64 *>(from)[i] : 0;
  }
  return s;
}
/// A barrier must follow.
DEVICE void store_group(const Group *from, const Staged &s, u64 *words) {
#pragma unroll
  for (int j = 0; j < 3; j++) {
    const int i = threadIdx.x + j * blockDim.x;
    if (i < GROUP_WORDS) words[i] = s.word[j];
  }
  for (int i = threadIdx.x + 3 * blockDim.x; i < GROUP_WORDS; i += blockDim.x) words[i] = reinterpret_cast<const u64 *>(from)[i];
}

DEVICE int owner_of(const Group *g, int expert) {
  int m = 0;
  for (int d = 1; d < (int)g->size; d++) m += expert >= (int)g->first_expert[d];
  return m;
}

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
