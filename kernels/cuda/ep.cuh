// What the kernels of expert parallelism share: where the members' exchange regions lie, words that peers write, waits that end.
//
// Every rank lends one region, reachable by all its peers. A word that a peer writes carries the number of the operation (epoch), so
// nothing is ever reset and a captured graph may be launched again and again: epochs are counted in device memory. There is one
// epoch for each result (parity) and mode. A wait that takes too long leaves word of whom it waited for and ends.
#pragma once
#include "ep_primitives.cuh"

namespace ep {

constexpr int MAX_MEMBERS = 32;

/// Areas of a region, in the order in which the host lists their offsets (src/comm/peer/region.ts). `own`: no peer writes it.
enum Area {
  COUNTS,      // u64 [source][members + most local experts]: epoch << 32 | count
  DONE,        // u32 [source]: the source's rows are here
  READY,       // u32 [source]: the source's partial rows may be read
  IDS,         // i32 [rows, topK]: local experts of received rows
  WEIGHTS,     // f32 [rows, topK]
  TOKENS,      // i32 [rows]: index of the token at its source
  ROW_FLAGS,   // u32 [rows]: the row is here (expanding dispatch)
  ROWS,        // received rows
  PARTIALS,    // partial rows, read by peers
  TABLE,       // own: i32 [tokens, members]: row of each token at each member
  INFO,        // own: i32, see Info
  PLACES,      // own: i32 [rows, topK]: row among expanded rows
  SLOTS,       // low latency: rows [source, slot]
  SLOT_IDS,    // own: i32 [slots of all sources, topK]
  SLOT_WEIGHTS, // own
  SLOT_TOKENS, // own
  SLOT_FLAGS,  // u32 [slots of all sources]
  SLOT_COUNTS, // u64 [source]: epoch << 32 | tokens
  SLOT_DONE,   // u32 [member]: the member has read its slots
  BACK,        // rows that come back: [member or choice, slot]
  BACK_FLAGS,  // u32 [member or choice, slot, part of the row]
  SLOT_TABLE,  // own: i32 [slots, members]
  SLOT_INFO,   // own: i32 tokens of sources [members], rows of experts [local], ranges [local, members, 2]
  SLOT_OF_ROW, // own: i32 [local experts, slots of all sources]
  ROW_OF_SLOT, // own: i32 [slots of all sources, topK]
  SLOT_WORDS,  // u64 [slots of all sources, ⌈topK / 2⌉]: epoch << 32 | two local experts of 16 bits; then [the same, topK + 1]: epoch << 32 |
               // weights and the source token
  BARRIER,     // u32 [member]
  AREAS
};

/// As the host writes it: words of 8 bytes.
struct Group {
  u64 base[MAX_MEMBERS];
  i64 first_expert[MAX_MEMBERS + 1];
  i64 size, member, top_k, experts, tokens, rows, slots, count_stride;
  u64 active;     // bit m: member m lives
  i64 timeout_ns;
  u64 fault;      // u32 [8] in host memory
  u64 state;      // u32 words of this rank, see State
  u64 member_of;  // u8 [experts]
  i64 row_stride, partial_stride, slot_stride, back_stride; // bytes
  i64 at[AREAS][2];
};

/// Words of a rank's state.
enum State { EPOCH = 0, SLOT_EPOCH = 2, COUNTER = 4, TICKET = 5, SENT_COUNTER = 6, POISON = 8, BARRIERS = 9 };

/// Words of INFO.
enum Info { RECEIVED = 0, OVERFLOW = 1, EXPANDED = 2, TILES = 3, SOURCE_START = 8, EXPERTS = 8 + MAX_MEMBERS + 1 };
// From EXPERTS on: rows of each local expert, where they begin among expanded rows, and where the next one goes.

enum Phase { NOTIFY = 1, DISPATCH = 2, ROW = 3, COMBINE = 4, SLOT_COUNT = 5, SLOT = 6, SLOT_FREE = 7, BACK_ROW = 8, MEET = 9 };

template <class T> DEVICE T *at(const Group *g, int member, Area area, int parity) {
  return reinterpret_cast<T *>(g->base[member] + g->at[area][parity]);
}
template <class T> DEVICE T *mine(const Group *g, Area area, int parity) { return at<T>(g, (int)g->member, area, parity); }
DEVICE u32 *state(const Group *g, int word) { return reinterpret_cast<u32 *>(g->state) + word; }
DEVICE bool lives(const Group *g, int member) { return (g->active >> member) & 1; }
DEVICE int local_experts(const Group *g) { return (int)(g->first_expert[g->member + 1] - g->first_expert[g->member]); }

// ---------------------------------------------------------------------------------------------- waits

/// Leaves word in host memory, once; later waits of this rank end at their first look.
DEVICE void report(const Group *g, int phase, int peer, int parity, u32 epoch, u32 seen, int place) {
  if (atomicExch(state(g, POISON), 1u) != 0) return;
  volatile u32 *to = reinterpret_cast<volatile u32 *>(g->fault);
  to[1] = (u32)peer, to[2] = (u32)parity, to[3] = epoch, to[4] = seen, to[5] = (u32)place;
  fence_sys();
  to[0] = (u32)phase;
  fence_sys();
}

/// After each look in vain; clock and poison only now and then: they would hold up the next look. `spin` and `end` begin at 0.
/// @returns whether to give up
DEVICE bool give_up(const Group *g, u32 &spin, u64 &end, int phase, int peer, int parity, u32 epoch, u32 seen, int place) {
  if ((++spin & 127) != 0) return false;
  if (ld_volatile(state(g, POISON)) != 0) return true;
  const u64 now = now_ns();
  if (end == 0) end = now + (u64)g->timeout_ns;
  if (now < end) return false;
  report(g, phase, peer, parity, epoch, seen, place);
  return true;
}

/// Waits until a word has come to `epoch`. @returns false when it took too long
DEVICE bool wait_flag(const Group *g, const u32 *flag, u32 epoch, int phase, int peer, int parity, int place = 0) {
  u32 spin = 0;
  u64 end = 0;
  while (true) {
    const u32 seen = ld_acquire_sys(flag);
    if ((int)(seen - epoch) >= 0) return true;
    if (give_up(g, spin, end, phase, peer, parity, epoch, seen, place)) return false;
  }
}

/// Waits for a count that carries its epoch. 0 when it took too long.
DEVICE int wait_count(const Group *g, const u64 *word, u32 epoch, int phase, int peer, int parity, int place = 0) {
  u32 spin = 0;
  u64 end = 0;
  while (true) {
    const u64 seen = ld_acquire_sys(word);
    if ((int)((u32)(seen >> 32) - epoch) >= 0) return (int)(u32)seen;
    if (give_up(g, spin, end, phase, peer, parity, epoch, (u32)(seen >> 32), place)) return 0;
  }
}

/// Every thread of the block calls it when its writes are made. True for the threads of the block that came last, after all
/// blocks' writes; the counter is 0 again then.
DEVICE bool came_last(const Group *g, int counter) {
  BLOCK_SHARED(u32, last, 1);
  __syncthreads();
  if (threadIdx.x == 0) {
    fence_sys();
    const u32 before = atomicAdd(state(g, counter), 1u);
    last[0] = before == gridDim.x - 1;
    if (last[0]) *state(g, counter) = 0;
    fence_sys();
  }
  __syncthreads();
  return last[0] != 0;
}

/// Raises this member's flag at every living member.
DEVICE void raise(const Group *g, Area area, int parity, u32 epoch) {
  const int m = threadIdx.x;
  if (m < (int)g->size && lives(g, m)) st_release_sys(at<u32>(g, m, area, parity) + g->member, epoch);
}
DEVICE void await_all(const Group *g, Area area, int parity, u32 epoch, int phase) {
  const int m = threadIdx.x;
  if (m < (int)g->size && lives(g, m)) wait_flag(g, mine<u32>(g, area, parity) + m, epoch, phase, m, parity);
}

// ---------------------------------------------------------------------------------------------- fp8, 1 × 128

/// Bits of a magnitude: they order as the numbers do, and what is not finite comes out on top.
DEVICE u32 magnitude(float x) { return __float_as_uint(x) & 0x7fffffffu; }

/// Scale and what to multiply with, from the largest magnitude (rule: src/comm/wire/codec.ts).
DEVICE void fp8_scale(u32 top, bool round_scales, float &scale, float &inverse) {
  const float floor = fmaxf(__uint_as_float(top), 1e-4f);
  scale = __fdiv_rn(floor, 448.0f);
  inverse = __fdiv_rn(448.0f, floor);
  if (round_scales) {
    const u32 s = __float_as_uint(scale), exponent = (s >> 23) + ((s & 0x7fffffu) != 0 ? 1 : 0);
    scale = __uint_as_float(exponent << 23);
    inverse = __uint_as_float((254 - exponent) << 23);
  }
  if (top >= 0x7f800000u) scale = __uint_as_float(0x7fffffffu), inverse = 0.0f;
}

/// 16 elements of a row: quantised with their neighbours (8 lanes hold a block of 128). All lanes of the warp call it.
DEVICE uint4 quantise16(const float (&x)[16], bool round_scales, float &scale) {
  u32 top = 0;
#pragma unroll
  for (int i = 0; i < 16; i++) top = max2(top, magnitude(x[i]));
#pragma unroll
  for (int d = 4; d > 0; d >>= 1) top = max2(top, __shfl_xor_sync(0xffffffffu, top, d));
  float inverse;
  fp8_scale(top, round_scales, scale, inverse);
  const bool finite = top < 0x7f800000u;
  u32 w[4];
#pragma unroll
  for (int i = 0; i < 4; i++)
    w[i] = finite ? pack_e4m3(x[4 * i] * inverse, x[4 * i + 1] * inverse) | pack_e4m3(x[4 * i + 2] * inverse, x[4 * i + 3] * inverse) << 16 : 0u;
  return make_uint4(w[0], w[1], w[2], w[3]);
}

/// Elements 16 * piece of a row of T, zeros past its end.
DEVICE void load16(const bf16 *row, int piece, bool valid, float (&x)[16]) {
#pragma unroll
  for (int i = 0; i < 16; i++) x[i] = 0.0f;
  if (!valid) return;
  float half[8];
  ldVec(row + 16 * piece, half);
#pragma unroll
  for (int i = 0; i < 8; i++) x[i] = half[i];
  ldVec(row + 16 * piece + 8, half);
#pragma unroll
  for (int i = 0; i < 8; i++) x[8 + i] = half[i];
}
DEVICE void load16(const float *row, int piece, bool valid, float (&x)[16]) {
#pragma unroll
  for (int j = 0; j < 4; j++) {
    float v[4] = {};
    if (valid) ldVec(row + 16 * piece + 4 * j, v);
#pragma unroll
    for (int i = 0; i < 4; i++) x[4 * j + i] = v[i];
  }
}

// ---------------------------------------------------------------------------------------------- sums

/// 16 bytes as numbers, added into `sum` with a weight.
template <int N> DEVICE void add_weighted(float (&sum)[N], uint4 raw, float weight, const bf16 *) {
  float v[8];
  unpack16(raw, v, (const bf16 *)nullptr);
#pragma unroll
  for (int i = 0; i < 8; i++) sum[i] = fmaf(weight, v[i], sum[i]);
}
template <int N> DEVICE void add_weighted(float (&sum)[N], uint4 raw, float weight, const float *) {
  float v[4];
  unpack16(raw, v, (const float *)nullptr);
#pragma unroll
  for (int i = 0; i < 4; i++) sum[i] = fmaf(weight, v[i], sum[i]);
}

/// N sums (as many as 16 bytes of In) as Out, to `to`.
template <class Out, int N> DEVICE void store_sum(Out *to, const float (&sum)[N]) {
  if constexpr (sizeof(Out) == 4) {
#pragma unroll
    for (int i = 0; i < N; i += 4) {
      const float v[4] = {sum[i], sum[i + 1], sum[i + 2], sum[i + 3]};
      stVec(to + i, v);
    }
  } else if constexpr (N == 8) {
    stVec(to, sum);
  } else {
    *reinterpret_cast<uint2 *>(to) = make_uint2(pack_bf16(sum[0], sum[1]), pack_bf16(sum[2], sum[3]));
  }
}

} // namespace ep
