// Expert parallelism, normal mode: exact counts first, rows written once to where they stay, partial rows pulled back.
//
// 1. ep_notify: one block of 1,024 threads. Destinations of each token, its row at each of them (order: source rank, source token),
//    counts to all peers in words that carry the epoch (no fence), their counts, where sources and experts begin; and,
//    where asked, the tile records of grouped products (at most `most` rows a tile: row_tiles.cuh).
// 2. ep_dispatch_*: a warp a token. The row is read once and written to every member that has one of its experts, ids, weights
//    and source token beside it; fp8 is quantised in registers on the way. The last block tells the peers and waits for theirs.
// 3. ep_dispatch_expand: rows go on to the experts' segments while others are still travelling. `senders` blocks send to peers, a
//    flag a row; all others (and senders when they are done) take rows by ticket: own tokens first, then those of peers.
//    Places inside a segment are drawn by atomics: no bit of a sum depends on them.
// 4. ep_reduce_*: partial row = Σ over choices, ascending, of weight · expert row.
// 5. ep_combine_*: each member tells that its partial rows are there; then a warp a token adds the members' rows, ascending, in f32,
//    straight from peer memory. With `y` the own member's part is made from its expert rows and never stored.
// Shapes: rows of any size that is a multiple of 16 bytes; up to 32 members; top-k up to 32.
// Versions and times: docs/performance-ep-gpu.md.
#include "ep.cuh"
#include "row_tiles.cuh"

using namespace ep;

namespace {

DEVICE int scan_inclusive(int x) {
#pragma unroll
  for (int d = 1; d < 32; d <<= 1) {
    const int y = __shfl_up_sync(0xffffffffu, x, d);
    if (lane_id() >= d) x += y;
  }
  return x;
}

/// Members that a token goes to; counts its pairs.
DEVICE u32 destinations(const Group *g, const int *ids, int top_k, int experts, const u8 *member_of, int *pairs) {
  u32 mask = 0;
  auto take = [&](int e) {
    if (e < 0 || e >= experts) return;
    const int m = member_of[e];
    if (!lives(g, m)) return;
    mask |= 1u << m;
    atomicAdd(&pairs[e], 1);
  };
  if ((top_k & 3) == 0 && ((u64)ids & 15) == 0) {
    for (int k = 0; k < top_k; k += 4) {
      const int4 e = *reinterpret_cast<const int4 *>(ids + k);
      take(e.x), take(e.y), take(e.z), take(e.w);
    }
  } else {
    for (int k = 0; k < top_k; k++) take(ids[k]);
  }
  return mask;
}

/// What a warp knows of the rows of its token.
struct Targets {
  int row;  // of this lane's member; -1: none
  u32 mask; // members
};

DEVICE Targets targets_of(const int *table, int t, int size, u32 allowed) {
  const int lane = lane_id();
  const int row = lane < size && (allowed >> lane & 1) ? table[(i64)t * size + lane] : -1;
  return {row, __ballot_sync(0xffffffffu, row >= 0)};
}

/// Ids local to member d, weights and source token of row `row` there. Lane k has choice k.
DEVICE void write_meta(const Group *g, int parity, int d, int row, int id, float weight, int token) {
  const int top_k = (int)g->top_k, lane = lane_id();
  if (lane < top_k) {
    const int local = id - (int)g->first_expert[d];
    const bool here = id >= 0 && local >= 0 && id < (int)g->first_expert[d + 1];
    at<int>(g, d, IDS, parity)[(i64)row * top_k + lane] = here ? local : -1;
    at<float>(g, d, WEIGHTS, parity)[(i64)row * top_k + lane] = here ? weight : 0.0f;
  }
  if (lane == 0) at<int>(g, d, TOKENS, parity)[row] = token;
}

struct Choices {
  const int *ids;
  int ids_stride;
  const float *weights;
  int weights_stride;
};

DEVICE void load_choices(const Choices &c, int t, int top_k, int &id, float &weight) {
  const int lane = lane_id();
  id = lane < top_k ? c.ids[(i64)t * c.ids_stride + lane] : -1;
  weight = lane < top_k ? c.weights[(i64)t * c.weights_stride + lane] : 0.0f;
}

constexpr int AHEAD = 7;

/// A row of `pieces` times 16 bytes, read once by `load`, to `target(i)` for every bit i of `mask`.
template <class Load, class Target> DEVICE void spread_row(const uint4 *from, int pieces, u32 mask, Load load, Target target) {
  const int lane = lane_id();
  for (int begin = 0; begin < pieces; begin += 32 * AHEAD) {
    uint4 v[AHEAD];
#pragma unroll
    for (int i = 0; i < AHEAD; i++) {
      const int c = begin + 32 * i + lane;
      if (c < pieces) v[i] = load(from + c);
    }
    for (u32 left = mask; left; left &= left - 1) {
      uint4 *to = reinterpret_cast<uint4 *>(target(__ffs(left) - 1));
#pragma unroll
      for (int i = 0; i < AHEAD; i++) {
        const int c = begin + 32 * i + lane;
        if (c < pieces) st_peer(to + c, v[i]);
      }
    }
  }
}

/// The row in fp8: `pieces` times 16 elements. `scales` is the warp's own shared memory.
template <class In>
DEVICE void quantise_row(const Group *g, int parity, const In *from, int pieces, bool round_scales, const Targets &to, float *scales) {
  const int lane = lane_id();
  for (int begin = 0; begin < pieces; begin += 32) {
    const int c = begin + lane;
    float x[16], scale;
    load16(from, c, c < pieces, x);
    const uint4 v = quantise16(x, round_scales, scale);
    if ((lane & 7) == 0 && c < pieces) scales[c >> 3] = scale;
    for (u32 left = to.mask; left; left &= left - 1) {
      const int d = __ffs(left) - 1;
      const int row = __shfl_sync(0xffffffffu, to.row, d);
      if (c < pieces) st_peer(at<char>(g, d, ROWS, parity) + (i64)row * g->row_stride + 16 * c, v);
    }
  }
  __syncwarp();
  const int blocks = (pieces + 7) >> 3;
  for (u32 left = to.mask; left; left &= left - 1) {
    const int d = __ffs(left) - 1;
    const int row = __shfl_sync(0xffffffffu, to.row, d);
    float *target = reinterpret_cast<float *>(at<char>(g, d, ROWS, parity) + (i64)row * g->row_stride + 16 * pieces);
    for (int b = lane; b < blocks; b += 32) target[b] = scales[b];
  }
  __syncwarp();
}

/// A warp takes token `first` and every `step`-th after it: to the members in `allowed` that have one of its experts goes its row, by
/// `write_row`, and ids, weights and source token beside it; then `sent` is called.
template <class WriteRow, class Sent>
DEVICE void send_tokens(const Group *g, int parity, const Choices &choices, int tokens, int first, int step, u32 allowed, WriteRow write_row,
                        Sent sent) {
  const int size = (int)g->size, top_k = (int)g->top_k;
  const int *table = mine<int>(g, TABLE, parity);
  for (int t = first; t < tokens; t += step) {
    const Targets to = targets_of(table, t, size, allowed);
    if (to.mask == 0) continue;
    int id;
    float weight;
    load_choices(choices, t, top_k, id, weight);
    write_row(t, to);
    for (u32 left = to.mask; left; left &= left - 1) {
      const int d = __ffs(left) - 1;
      write_meta(g, parity, d, __shfl_sync(0xffffffffu, to.row, d), id, weight, t);
    }
    sent(to);
  }
}

/// The row as it is.
DEVICE void copy_row(const Group *g, int parity, const char *from, int pieces, const Targets &to) {
  spread_row(
      reinterpret_cast<const uint4 *>(from), pieces, to.mask, [](const uint4 *p) { return *p; },
      [&](int d) { return at<char>(g, d, ROWS, parity) + (i64)__shfl_sync(0xffffffffu, to.row, d) * g->row_stride; });
}

/// The end of a dispatch: all rows of this rank are at their places, then those of all others are here.
DEVICE void tell_and_wait(const Group *g, int parity, u32 epoch) {
  if (!came_last(g, COUNTER)) return;
  raise(g, DONE, parity, epoch);
  await_all(g, DONE, parity, epoch, DISPATCH);
}

} // namespace

/// Shared memory: u32 [tokens] + i32 [members, ceil(tokens / 32)] + i32 [experts] + i32 [members, count_stride] + u8 [experts].
extern "C" __global__ void __launch_bounds__(1024)
    ep_notify(const Group *__restrict__ g, int parity, const int *ids, int ids_stride, int tokens, int alignment, int4 *tiles, int *tile_count, int most) {
  DYNAMIC_SHARED(u32, shared);
  BLOCK_SHARED(int, base, MAX_MEMBERS);
  BLOCK_SHARED(int, total, MAX_MEMBERS);
  BLOCK_SHARED(int, overflow, 1);
  const int size = (int)g->size, me = (int)g->member, experts = (int)g->experts, top_k = (int)g->top_k;
  const int words = (int)g->count_stride, groups = (tokens + 31) / 32, locals = local_experts(g);
  u32 *masks = shared;
  int *in_group = reinterpret_cast<int *>(masks + tokens);
  int *pairs = in_group + size * groups;
  int *counts = pairs + experts;
  u8 *member_of = reinterpret_cast<u8 *>(counts + size * words);
  const int tid = threadIdx.x, lane = lane_id(), warp = warp_id(), warps = blockDim.x >> 5;
  const u32 epoch = *state(g, EPOCH + parity) + 1;
  const u8 *members = reinterpret_cast<const u8 *>(g->member_of);
  for (int e = tid; e < experts; e += blockDim.x) pairs[e] = 0, member_of[e] = members[e];
  if (tid == 0) overflow[0] = 0;
  __syncthreads();
  for (int group = warp; group < groups; group += warps) {
    const int t = group * 32 + lane;
    const u32 mask = t < tokens ? destinations(g, ids + (i64)t * ids_stride, top_k, experts, member_of, pairs) : 0;
    if (t < tokens) masks[t] = mask;
    for (int d = 0; d < size; d++) {
      const u32 votes = __ballot_sync(0xffffffffu, mask >> d & 1);
      if (lane == 0) in_group[d * groups + group] = __popc(votes);
    }
  }
  __syncthreads();
  // Tokens before each group of 32, and all, for each member.
  for (int d = warp; d < size; d += warps) {
    int before = 0;
    for (int begin = 0; begin < groups; begin += 32) {
      const int i = begin + lane, n = i < groups ? in_group[d * groups + i] : 0;
      const int sum = scan_inclusive(n);
      if (i < groups) in_group[d * groups + i] = before + sum - n;
      before += __shfl_sync(0xffffffffu, sum, 31);
    }
    if (lane == 0) total[d] = before;
  }
  __syncthreads();
  for (int d = 0; d < size; d++) {
    if (!lives(g, d)) continue;
    u64 *to = at<u64>(g, d, COUNTS, parity) + (i64)me * words;
    const int first = (int)g->first_expert[d], n = size + (int)g->first_expert[d + 1] - first;
    for (int i = tid; i < n; i += blockDim.x)
      st_relaxed_sys(to + i, (u64)epoch << 32 | (u32)(i < size ? total[i] : pairs[first + i - size]));
  }
  for (int i = tid; i < size * (size + locals); i += blockDim.x) {
    const int s = i / (size + locals), j = i % (size + locals);
    const u64 *from = mine<u64>(g, COUNTS, parity) + (i64)s * words;
    counts[s * words + j] = lives(g, s) ? wait_count(g, from + j, epoch, NOTIFY, s, parity, j) : 0;
  }
  __syncthreads();
  int *info = mine<int>(g, INFO, parity);
  if (tid < size) {
    int before = 0, all = 0;
    for (int s = 0; s < size; s++) {
      const int n = counts[s * words + tid];
      if (s < me) before += n;
      all += n;
    }
    base[tid] = before;
    if (all > (int)g->rows) atomicExch(&overflow[0], 1 + tid);
    if (tid == me) {
      info[RECEIVED] = all;
      for (int s = 0, row = 0; s <= size; s++) {
        info[SOURCE_START + s] = row;
        if (s < size) row += counts[s * words + me];
      }
    }
  }
  __syncthreads();
  if (warp == 0) {
    int row = 0, tile = 0;
    for (int begin = 0; begin < locals; begin += 32) {
      const int e = begin + lane;
      int n = 0;
      if (e < locals)
        for (int s = 0; s < size; s++) n += counts[s * words + size + e];
      const int padded = (n + alignment - 1) / alignment * alignment;
      const int sum = scan_inclusive(padded), start = row + sum - padded;
      int each = most, parts = 0, tiles_sum = 0;
      if (tiles) each = rows_of_tile(n, most), parts = ceil_div(n, each), tiles_sum = scan_inclusive(parts);
      if (e < locals) {
        info[EXPERTS + e] = n;
        info[EXPERTS + locals + e] = start;
        info[EXPERTS + 2 * locals + e] = start;
        if (tiles)
          for (int i = 0; i < parts; i++)
            tiles[tile + tiles_sum - parts + i] = make_int4(e, start + i * each, min2(each, n - i * each), 0);
      }
      row += __shfl_sync(0xffffffffu, sum, 31), tile += __shfl_sync(0xffffffffu, tiles_sum, 31);
    }
    if (lane == 0) {
      info[EXPANDED] = row;
      info[OVERFLOW] = overflow[0];
      if (tile_count) *tile_count = tile;
      *state(g, EPOCH + parity) = epoch;
    }
  }
  int *table = mine<int>(g, TABLE, parity);
  for (int group = warp; group < groups; group += warps) {
    const int t = group * 32 + lane;
    const u32 mask = t < tokens ? masks[t] : 0;
    for (int d = 0; d < size; d++) {
      const u32 votes = __ballot_sync(0xffffffffu, mask >> d & 1);
      const int row = base[d] + in_group[d * groups + group] + __popc(votes & ((1u << lane) - 1));
      if (t < tokens) table[(i64)t * size + d] = (mask >> d & 1) && !overflow[0] ? row : -1;
    }
  }
}

/// Rows as they are. x: bytes between rows x_stride, `pieces` times 16 bytes a row.
extern "C" __global__ void __launch_bounds__(1024, 1)
    ep_dispatch_copy(const Group *__restrict__ g, int parity, const char *x, i64 x_stride, int pieces, const int *ids, int ids_stride,
                     const float *weights, int weights_stride, int tokens) {
  const u32 epoch = *state(g, EPOCH + parity);
  const Choices choices = {ids, ids_stride, weights, weights_stride};
  send_tokens(
      g, parity, choices, tokens, warp_id() * gridDim.x + blockIdx.x, gridDim.x * (blockDim.x >> 5), 0xffffffffu,
      [&](int t, const Targets &to) { copy_row(g, parity, x + t * x_stride, pieces, to); }, [](const Targets &) {});
  tell_and_wait(g, parity, epoch);
}

namespace {

template <class In>
DEVICE void dispatch_fp8(const Group *g, int parity, const In *x, i64 x_stride, int pieces, bool round_scales, const Choices &choices,
                         int tokens) {
  DYNAMIC_SHARED(float, scales); // [warps, blocks of 128]
  const u32 epoch = *state(g, EPOCH + parity);
  float *own = scales + warp_id() * ((pieces + 7) >> 3);
  send_tokens(
      g, parity, choices, tokens, warp_id() * gridDim.x + blockIdx.x, gridDim.x * (blockDim.x >> 5), 0xffffffffu,
      [&](int t, const Targets &to) { quantise_row(g, parity, x + t * x_stride, pieces, round_scales, to, own); }, [](const Targets &) {});
  tell_and_wait(g, parity, epoch);
}

} // namespace

/// Quantised on the way. x_stride in elements, `pieces` times 16 elements a row; shared memory: f32 [warps, ceil(pieces / 8)].
#define DISPATCH_FP8(NAME, IN)                                                                                                   \
  extern "C" __global__ void __launch_bounds__(1024, 1)                                                                          \
  NAME(const Group *__restrict__ g, int parity, const IN *x, i64 x_stride, int pieces, int round_scales, const int *ids,         \
       int ids_stride, const float *weights, int weights_stride, int tokens) {                                                   \
    dispatch_fp8(g, parity, x, x_stride, pieces, round_scales != 0, Choices{ids, ids_stride, weights, weights_stride}, tokens);  \
  }
DISPATCH_FP8(ep_dispatch_fp8_bf16, bf16)
DISPATCH_FP8(ep_dispatch_fp8_f32, float)

namespace {

/// A row that goes on to experts: its number among received rows (-1: none), the local expert of this lane's choice, where it lies.
struct Arrival {
  int row, expert;
  const char *from;
};

/// Token t of this rank, whose row stays where it is.
DEVICE Arrival own_row(const Group *g, int parity, const char *x, i64 x_stride, const Choices &choices, int t) {
  const int me = (int)g->member, row = mine<int>(g, TABLE, parity)[t * g->size + me];
  if (row < 0) return {-1, -1, nullptr};
  int id;
  float weight;
  load_choices(choices, t, (int)g->top_k, id, weight);
  write_meta(g, parity, me, row, id, weight, t);
  const int first = (int)g->first_expert[me];
  return {row, id >= first && id < (int)g->first_expert[me + 1] ? id - first : -1, x + t * x_stride};
}

/// Row i of source s, when it has come.
DEVICE Arrival peer_row(const Group *g, int parity, u32 epoch, int s, int i) {
  const int *info = mine<int>(g, INFO, parity);
  const int row = info[SOURCE_START + s] + i, lane = lane_id(), top_k = (int)g->top_k;
  if (row >= info[SOURCE_START + s + 1]) return {-1, -1, nullptr};
  bool here = true;
  if (lane == 0) here = wait_flag(g, mine<u32>(g, ROW_FLAGS, parity) + row, epoch, ROW, s, parity, row);
  if (!__shfl_sync(0xffffffffu, here, 0)) return {-1, -1, nullptr};
  fence_sys();
  const int id = lane < top_k ? (int)ld_volatile(mine<u32>(g, IDS, parity) + (i64)row * top_k + lane) : -1;
  return {row, id, mine<char>(g, ROWS, parity) + (i64)row * g->row_stride};
}

/// Own tokens first, then those of peers as they come, a warp a ticket: to the segments in `to` of all their experts here.
DEVICE void hand_on(const Group *g, int parity, const char *x, i64 x_stride, int pieces, const Choices &choices, int tokens, char *to,
                    i64 to_stride, int to_rows) {
  const u32 epoch = *state(g, EPOCH + parity);
  const int size = (int)g->size, me = (int)g->member, top_k = (int)g->top_k, peers = size - 1, lane = lane_id();
  int *info = mine<int>(g, INFO, parity);
  int most = 0;
  for (int s = 0; s < size; s++)
    if (s != me) most = max2(most, info[SOURCE_START + s + 1] - info[SOURCE_START + s]);
  const int work = info[OVERFLOW] ? 0 : tokens + most * peers;
  while (true) {
    int ticket = 0;
    if (lane == 0) ticket = (int)atomicAdd(state(g, TICKET), 1u);
    ticket = __shfl_sync(0xffffffffu, ticket, 0);
    if (ticket >= work) break;
    const int later = ticket - tokens;
    const Arrival a = later < 0 ? own_row(g, parity, x, x_stride, choices, ticket)
                                : peer_row(g, parity, epoch, (me + 1 + later % peers) % size, later / peers);
    if (a.row < 0) continue;
    int place = -1;
    if (a.expert >= 0) {
      place = atomicAdd(&info[EXPERTS + 2 * local_experts(g) + a.expert], 1);
      if (place >= to_rows) place = -1;
    }
    if (lane < top_k) mine<int>(g, PLACES, parity)[(i64)a.row * top_k + lane] = place;
    spread_row(
        reinterpret_cast<const uint4 *>(a.from), pieces, __ballot_sync(0xffffffffu, place >= 0), [](const uint4 *p) { return ld_peer(p); },
        [&](int k) { return to + (i64)__shfl_sync(0xffffffffu, place, k) * to_stride; });
  }
}

} // namespace

/// Rows as they are, on to the experts' segments in `to` (bytes between rows to_stride, `to_rows` of them).
extern "C" __global__ void __launch_bounds__(1024, 1)
    ep_dispatch_expand(const Group *__restrict__ g, int parity, const char *x, i64 x_stride, int pieces, const int *ids, int ids_stride,
                       const float *weights, int weights_stride, int tokens, int senders, char *to, i64 to_stride, int to_rows) {
  const Choices choices = {ids, ids_stride, weights, weights_stride};
  if ((int)blockIdx.x < senders) {
    const u32 epoch = *state(g, EPOCH + parity);
    send_tokens(
        g, parity, choices, tokens, warp_id() * senders + blockIdx.x, senders * (blockDim.x >> 5), ~(1u << g->member),
        [&](int t, const Targets &to) { copy_row(g, parity, x + t * x_stride, pieces, to); },
        [&](const Targets &to) {
          const int d = lane_id();
          __syncwarp();
          fence_sys();
          if (to.mask >> d & 1) st_release_sys(at<u32>(g, d, ROW_FLAGS, parity) + to.row, epoch);
        });
  }
  hand_on(g, parity, x, x_stride, pieces, choices, tokens, to, to_stride, to_rows);
  // Every row that travels was waited for, so nothing is left to tell.
  if (came_last(g, COUNTER) && threadIdx.x == 0) *state(g, TICKET) = 0;
}

namespace {

constexpr int COLUMNS = 4; // 16-byte pieces of a row that a lane sums at a time

/// Σ of `mask`'s choices, ascending, of their weights times rows of y, for COLUMNS pieces; two rows are on their way at a time.
template <class Y>
DEVICE void sum_experts(float (&sum)[COLUMNS][Vec<Y>::N], const Y *y, i64 y_stride, int place, float weight, u32 mask, int begin, int pieces) {
  const int lane = lane_id();
  for (u32 left = mask; left;) {
    const int a = __ffs(left) - 1;
    left &= left - 1;
    const int b = left ? __ffs(left) - 1 : -1;
    left &= left - 1;
    const char *from_a = reinterpret_cast<const char *>(y + (i64)__shfl_sync(0xffffffffu, place, a) * y_stride);
    const char *from_b = reinterpret_cast<const char *>(y + (i64)__shfl_sync(0xffffffffu, place, b < 0 ? a : b) * y_stride);
    const float weight_a = __shfl_sync(0xffffffffu, weight, a), weight_b = __shfl_sync(0xffffffffu, weight, b < 0 ? a : b);
    uint4 va[COLUMNS], vb[COLUMNS];
#pragma unroll
    for (int i = 0; i < COLUMNS; i++) {
      const int c = begin + 32 * i + lane;
      if (c < pieces) va[i] = ld_stream16(from_a + 16 * c);
      if (c < pieces && b >= 0) vb[i] = ld_stream16(from_b + 16 * c);
    }
#pragma unroll
    for (int i = 0; i < COLUMNS; i++) {
      const int c = begin + 32 * i + lane;
      if (c < pieces) add_weighted(sum[i], va[i], weight_a, (const Y *)nullptr);
      if (c < pieces && b >= 0) add_weighted(sum[i], vb[i], weight_b, (const Y *)nullptr);
    }
  }
}

template <class Y, class P>
DEVICE void reduce(const Group *g, int parity, const Y *y, i64 y_stride, int width, int skip_own) {
  constexpr int N = Vec<Y>::N;
  const int top_k = (int)g->top_k, lane = lane_id(), pieces = width / N, me = (int)g->member;
  const int *info = mine<int>(g, INFO, parity), *places = mine<int>(g, PLACES, parity);
  const float *weights = mine<float>(g, WEIGHTS, parity);
  const int received = info[OVERFLOW] ? 0 : info[RECEIVED];
  const int own = info[SOURCE_START + me], own_end = info[SOURCE_START + me + 1];
  const int rows = skip_own ? received - (own_end - own) : received;
  for (int i = blockIdx.x * (blockDim.x >> 5) + warp_id(); i < rows; i += gridDim.x * (blockDim.x >> 5)) {
    const int row = skip_own && i >= own ? i + (own_end - own) : i;
    const int place = lane < top_k ? places[(i64)row * top_k + lane] : -1;
    const float weight = lane < top_k ? weights[(i64)row * top_k + lane] : 0.0f;
    const u32 mask = __ballot_sync(0xffffffffu, place >= 0);
    P *to = reinterpret_cast<P *>(mine<char>(g, PARTIALS, parity) + (i64)row * g->partial_stride);
    for (int begin = 0; begin < pieces; begin += 32 * COLUMNS) {
      float sum[COLUMNS][N] = {};
      sum_experts(sum, y, y_stride, place, weight, mask, begin, pieces);
#pragma unroll
      for (int j = 0; j < COLUMNS; j++) {
        const int c = begin + 32 * j + lane;
        if (c < pieces) store_sum(to + c * N, sum[j]);
      }
    }
  }
}

template <class P, class Out, bool LOCAL>
DEVICE void combine(const Group *g, int parity, Out *out, i64 out_stride, int width, int tokens, const P *y, i64 y_stride) {
  constexpr int N = Vec<P>::N;
  const u32 epoch = *state(g, EPOCH + parity);
  if (blockIdx.x == 0) {
    fence_sys();
    raise(g, READY, parity, epoch);
  }
  await_all(g, READY, parity, epoch, COMBINE);
  __syncthreads();
  const int size = (int)g->size, me = (int)g->member, top_k = (int)g->top_k, lane = lane_id(), pieces = width / N;
  const int *table = mine<int>(g, TABLE, parity), *places = mine<int>(g, PLACES, parity);
  const float *weights = mine<float>(g, WEIGHTS, parity);
  for (int t = warp_id() * gridDim.x + blockIdx.x; t < tokens; t += gridDim.x * (blockDim.x >> 5)) {
    const Targets from = targets_of(table, t, size, 0xffffffffu);
    const char *rows = lane < size && from.row >= 0 ? at<char>(g, lane, PARTIALS, parity) + (i64)from.row * g->partial_stride : nullptr;
    int place = -1;
    float weight = 0.0f;
    u32 choices = 0;
    if (LOCAL && (from.mask >> me & 1)) {
      const i64 row = __shfl_sync(0xffffffffu, from.row, me);
      place = lane < top_k ? places[row * top_k + lane] : -1;
      weight = lane < top_k ? weights[row * top_k + lane] : 0.0f;
      choices = __ballot_sync(0xffffffffu, place >= 0);
    }
    Out *to = out + t * out_stride;
    for (int begin = 0; begin < pieces; begin += 32 * COLUMNS) {
      float sum[COLUMNS][N] = {};
      for (u32 left = from.mask; left;) {
        const int a = __ffs(left) - 1;
        left &= left - 1;
        if (LOCAL && a == me) {
          sum_experts(sum, y, y_stride, place, weight, choices, begin, pieces);
          continue;
        }
        // Two members at a time, but the own one only alone when its part is made here.
        int b = left ? __ffs(left) - 1 : -1;
        if (LOCAL && b == me) b = -1;
        if (b >= 0) left &= left - 1;
        const char *from_a = (const char *)__shfl_sync(0xffffffffu, (u64)rows, a);
        // Written out, as in sum_experts: shared between them it took a quarter longer with 24 blocks (H200).
        const char *from_b = (const char *)__shfl_sync(0xffffffffu, (u64)rows, b < 0 ? a : b);
        uint4 va[COLUMNS], vb[COLUMNS];
#pragma unroll
        for (int i = 0; i < COLUMNS; i++) {
          const int c = begin + 32 * i + lane;
          if (c < pieces) va[i] = ld_peer(from_a + 16 * c);
          if (c < pieces && b >= 0) vb[i] = ld_peer(from_b + 16 * c);
        }
#pragma unroll
        for (int i = 0; i < COLUMNS; i++) {
          const int c = begin + 32 * i + lane;
          if (c < pieces) add_weighted(sum[i], va[i], 1.0f, (const P *)nullptr);
          if (c < pieces && b >= 0) add_weighted(sum[i], vb[i], 1.0f, (const P *)nullptr);
        }
      }
#pragma unroll
      for (int j = 0; j < COLUMNS; j++) {
        const int c = begin + 32 * j + lane;
        if (c < pieces) store_sum(to + c * N, sum[j]);
      }
    }
  }
}

} // namespace

/// y: the experts' rows where dispatch put them, y_stride in elements. skip_own: rows that came from this rank are left out.
#define REDUCE(NAME, Y, P)                                                                                                        \
  extern "C" __global__ void __launch_bounds__(512)                                                                               \
  NAME(const Group *__restrict__ g, int parity, const Y *y, i64 y_stride, int width, int skip_own) {                              \
    reduce<Y, P>(g, parity, y, y_stride, width, skip_own);                                                                        \
  }
REDUCE(ep_reduce_bf16_bf16, bf16, bf16)
REDUCE(ep_reduce_f32_f32, float, float)

/// out_stride and y_stride in elements. With LOCAL the own part is made of y, the experts' rows, instead of read from PARTIALS.
#define COMBINE(NAME, P, OUT, LOCAL)                                                                                              \
  extern "C" __global__ void __launch_bounds__(512)                                                                               \
  NAME(const Group *__restrict__ g, int parity, OUT *out, i64 out_stride, int width, int tokens, const P *y, i64 y_stride) {      \
    combine<P, OUT, LOCAL>(g, parity, out, out_stride, width, tokens, y, y_stride);                                               \
  }
COMBINE(ep_combine_bf16_bf16, bf16, bf16, false)
COMBINE(ep_combine_bf16_f32, bf16, float, false)
COMBINE(ep_combine_f32_f32, float, float, false)
COMBINE(ep_combine_local_bf16_bf16, bf16, bf16, true)

/// All members meet at an epoch of their own: before memory is taken away, after a result is given up. Word: SLOT_DONE or READY.
extern "C" __global__ void ep_meet(const Group *__restrict__ g, int parity, int low_latency) {
  const u32 epoch = *state(g, (low_latency ? SLOT_EPOCH : EPOCH) + parity);
  fence_sys();
  raise(g, low_latency ? SLOT_DONE : READY, parity, epoch);
  if (!low_latency) await_all(g, READY, parity, epoch, MEET);
}

/// All members meet `rounds` times. A round is one flag to every peer and one from each: what a notification costs at least.
extern "C" __global__ void ep_barrier(const Group *__restrict__ g, int rounds) {
  u32 *epoch = state(g, BARRIERS);
  const u32 begin = *epoch;
  for (int i = 1; i <= rounds; i++) {
    raise(g, BARRIER, 0, begin + i);
    await_all(g, BARRIER, 0, begin + i, MEET);
    __syncthreads();
  }
  if (threadIdx.x == 0) *epoch = begin + rounds;
}

/// Controls of benchmarks: 16 bytes a thread at a time, from anywhere to anywhere.
extern "C" __global__ void __launch_bounds__(1024) ep_copy(uint4 *to, const uint4 *from, i64 pieces) {
  const i64 all = (i64)gridDim.x * blockDim.x, me = (i64)blockIdx.x * blockDim.x + threadIdx.x;
  for (i64 begin = me; begin < pieces; begin += 4 * all) {
    uint4 v[4];
#pragma unroll
    for (int i = 0; i < 4; i++)
      if (begin + i * all < pieces) v[i] = ld_peer(from + begin + i * all);
#pragma unroll
    for (int i = 0; i < 4; i++)
      if (begin + i * all < pieces) st_peer(to + begin + i * all, v[i]);
  }
}
