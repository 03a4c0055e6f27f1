// Drawing of tokens: greedy, or Gumbel-max over logits / temperature after top-k, top-p and min-p.
//
// Shapes: logits f32 [rows, vocab], vocab <= 2^20; params [rows, 8] (see Ops.sample); out i32, logprob f32 [rows] or null.
// Rules: those of kernels/cpu/sample.cpp. Order: larger logit first, then lower id. Noise of a token: -ln(-ln u), u from Philox
// 4x32-10 keyed by the seed, computed in double precision where it can decide; so draws are the CPU's. Masses for top-p are f32
// exponentials added as integers: the same bits in any order, and within 1e-6 of the row's mass of exact sums. A draw may differ
// from the CPU's only where the mass before some token is that close to top_p of all.
// Algorithm: four kernels, of which the middle two end at once for rows without top-k or top-p.
//   sample_scan: largest logit, its id, the least and the sum of exponentials of 1/32 of a row a block.
//   sample_weigh: tokens and masses in 2,048 bins of depth below the best, one row by several blocks; the last finds the bin with
//     the last token that stays.
//   sample_gather: lists tokens up to that bin if they are at most 4,096, or of that bin alone; the last block sorts the list,
//     which gives the last token that stays, and draws from what stays if the list has it all. If one bin alone has more tokens
//     than that (few distinct logits), one block selects by radix (sample_radix.cuh).
//   sample_draw: all other rows, by several blocks. A token is looked at closely only if its random word can make it win (1 - u <
//     e^-gap, as on the CPU) against the best of a first glance at the block's first 2,048.
// Versions and times (H200, 151,936 logits evenly in -10..10; 1, 32, 128 rows; greedy / temperature 1 / top-k 50 / top-p 0.9):
//   1. 8 blocks a row, every thread from the best token's score; one block a row for limits, by radix selection with 4 passes:
//      6.9 / 28.6 / 606 / 926 us, 12.4 / 60.6 / 769 / 1070 us, 29.9 / 184 / 1051 / 1554 us.
//   2. bins, lists and a first glance: 7.5 / 15.6 / 24.0 / 35.3 us, 13.9 / 32.3 / 46.6 / 75.6 us, 39.4 / 91.2 / 146 / 214 us.
#include "sample_radix.cuh"

#ifndef SAMPLE_LIST
#define SAMPLE_LIST 4096
#endif

namespace {

using namespace sampling;

constexpr int SCAN_THREADS = 256, LIST = SAMPLE_LIST;

// V elements at once, four times that under way.
template <int V> DEVICE Scan scanPart(const float *x, int from, int to) {
  Scan s = {LOWEST, 0.f, -LOWEST, NOWHERE};
  for (int c = from + threadIdx.x * V; c < to; c += SCAN_THREADS * V * 4) {
    float v[4][V];
#pragma unroll
    for (int i = 0; i < 4; i++) {
      if (c + i * SCAN_THREADS * V < to) load<V>(x + c + i * SCAN_THREADS * V, v[i]);
      else
        for (int j = 0; j < V; j++) v[i][j] = NEG_INF;
    }
    float most = s.top;
#pragma unroll
    for (int i = 0; i < 4; i++)
#pragma unroll
      for (int j = 0; j < V; j++) {
        if (v[i][j] > most || (v[i][j] == most && s.at == NOWHERE)) most = v[i][j], s.at = c + i * SCAN_THREADS * V + j;
        if (v[i][j] >= LOWEST) s.least = fminf(s.least, v[i][j]);
      }
    s.sum *= __expf(s.top - most);
    s.top = most;
#pragma unroll
    for (int i = 0; i < 4; i++)
#pragma unroll
      for (int j = 0; j < V; j++) s.sum += __expf(v[i][j] - most);
  }
  return s;
}

// What a row with limits has come to. Counters are back at 0 when a step has ended.
enum Mode { READY, WHOLE, BIN, CROWDED, DONE };
constexpr u64 ALL = ~0ull;
struct State {
  unsigned weighed, gathered, drawn, listed;
  int mode, bin; // WHOLE: tokens up to this bin are listed; BIN: only its own
  Cut cut;       // READY: the last token that stays
  u64 keep;      // of the list by count, or ALL: no top-k
  u64 left;      // mass that may lie before a listed token that stays, where top-p alone limits
};

} // namespace

// grid (32, rows), 256 threads. parts: Scan [rows][32].
extern "C" __global__ void __launch_bounds__(256) sample_scan(Scan *parts, const float *logits, int vocab, int vectors,
                                                              long long stride) {
  __shared__ Scan warps[SCAN_THREADS / 32];
  allow_dependents();
  wait_for_predecessors();
  const float *x = logits + blockIdx.y * stride;
  const int size = partSize(vocab, PARTS), from = blockIdx.x * size;
  const int to = from + size < vocab ? from + size : vocab;
  Scan s = vectors ? scanPart<4>(x, from, to) : scanPart<1>(x, from, to);
  mergeLanes(s);
  if (lane_id() == 0) warps[warp_id()] = s;
  __syncthreads();
  if (threadIdx.x == 0) {
    for (int w = 1; w < SCAN_THREADS / 32; w++) merge(s, warps[w].top, warps[w].sum, warps[w].least, warps[w].at);
    parts[blockIdx.y * PARTS + blockIdx.x] = s;
  }
}

// grid (8 to 64, rows), 512 threads. states: State [rows]; counts, masses: [rows][2048]; all zeroed once, counts and masses left zeroed.
extern "C" __global__ void __launch_bounds__(512) sample_weigh(State *states, unsigned *counts, u64 *masses,
                                                               const Scan *parts, const float *logits,
                                                               const float *params, int vocab, int vectors,
                                                               long long stride, long long paramStride) {
  __shared__ unsigned tokens[BINS], low[BINS], high[BINS];
  __shared__ u64 slots[WARPS];
  __shared__ unsigned last;
  allow_dependents();
  wait_for_predecessors();
  const int r = blockIdx.y;
  const Draw d = drawOf(params + r * paramStride, vocab);
  if (!d.limited) return;
  const Row row = rowOf(logits + r * stride, vocab, d, wholeRow(parts + r * PARTS));
  const bool byMass = d.topP < 1.f;
  for (int i = threadIdx.x; i < BINS; i += THREADS) tokens[i] = low[i] = high[i] = 0;
  __syncthreads();
  overPart(row, vectors, [&](int v, const float (&q)[4]) {
#pragma unroll
    for (int j = 0; j < 4; j++) {
      const float depth = depthOf(row, q[j]);
      if (!massive(depth)) continue;
      const int bin = binOf(row, depth);
      atomicAdd(&tokens[bin], 1u);
      if (!byMass) continue;
      // 64 bits by two words of shared memory: faster than one of 64.
      const u64 mass = massAt(depth);
      const unsigned lower = (unsigned)mass, old = atomicAdd(&low[bin], lower);
      const unsigned upper = (unsigned)(mass >> 32) + (old + lower < old);
      if (upper) atomicAdd(&high[bin], upper);
    }
  });
  __syncthreads();
  counts += (long long)r * BINS;
  masses += (long long)r * BINS;
  for (int i = threadIdx.x; i < BINS; i += THREADS) {
    if (tokens[i]) atomicAdd(&counts[i], tokens[i]);
    if (low[i] | high[i]) atomicAdd(&masses[i], (u64)high[i] << 32 | low[i]);
  }
  State &state = states[r];
  if (!lastToArrive(&state.weighed, &last)) return;

  constexpr int MINE = BINS / THREADS;
  u64 count[MINE], mass[MINE], ownCount = 0, ownMass = 0, allCount, allMass = 0, massBefore = 0;
  for (int i = 0; i < MINE; i++) {
    const int bin = threadIdx.x * MINE + i;
    volatile unsigned &c = counts[bin];
    volatile u64 &m = masses[bin];
    ownCount += count[i] = c, ownMass += mass[i] = m;
    c = 0, m = 0;
  }
  u64 countBefore = sumBefore(ownCount, slots, allCount);
  if (byMass) massBefore = sumBefore(ownMass, slots, allMass);
  // Tokens without mass never win: a top-k that reaches them does not limit.
  const bool byCount = d.k > 0 && d.k < allCount;
  if (threadIdx.x == 0) state.mode = READY, state.cut = everything();
  if (!byCount && !byMass) return;
  __syncthreads();
  // In just one bin lies the last token of top-k, or else of top-p: all mass is more than its share. With both, the list up to
  // top-k's bin has all that top-p can leave.
  const u64 share = shareOf(d.topP, allMass);
  for (int i = 0; i < MINE; i++) {
    const bool here = byCount ? countBefore < d.k && d.k <= countBefore + count[i]
                              : massBefore <= share && share < massBefore + mass[i];
    if (here) {
      const bool whole = countBefore + count[i] <= LIST, alone = count[i] <= LIST && !(byCount && byMass);
      state.mode = whole ? WHOLE : alone ? BIN : CROWDED;
      state.bin = threadIdx.x * MINE + i;
      state.keep = !byCount ? ALL : whole ? d.k : d.k - countBefore;
      state.left = whole ? share : share - massBefore;
    }
    countBefore += count[i], massBefore += mass[i];
  }
}

namespace {

DEVICE u64 entryOf(float x, int id) { return (u64)orderOf(x) << 32 | (0xffffffffu - (unsigned)id); }
DEVICE float logitOf(u64 entry) { return numberOf((unsigned)(entry >> 32)); }
DEVICE int idOf(u64 entry) { return (int)(0xffffffffu - (unsigned)entry); }

// By bitonic sort; `size` is a power of two.
DEVICE void sortDescending(u64 *list, int size) {
  for (int span = 2; span <= size; span <<= 1)
    for (int step = span >> 1; step > 0; step >>= 1) {
      __syncthreads();
      for (int i = threadIdx.x; i < size / 2; i += THREADS) {
        const int at = 2 * i - (i & (step - 1));
        const u64 p = list[at], q = list[at + step];
        if ((p < q) == ((at & span) == 0)) list[at] = q, list[at + step] = p;
      }
    }
  __syncthreads();
}

// How many of the first `keep` entries top-p leaves. `share`: see State.left; found from the entries themselves where top-k limits too.
DEVICE int keptByMass(const u64 *list, int keep, const Row &row, const Draw &d, bool byCount, u64 share, u64 *slots) {
  const int each = (keep + THREADS - 1) / THREADS, from = threadIdx.x * each;
  const int to = from + each < keep ? from + each : keep;
  u64 own = 0, total, kept, mine = 0;
  for (int i = from; i < to; i++) own += massOf(row, logitOf(list[i]));
  u64 before = sumBefore(own, slots, total);
  if (byCount) share = shareOf(d.topP, total);
  for (int i = from; i < to; i++) {
    mine += before <= share;
    before += massOf(row, logitOf(list[i]));
  }
  sumBefore(mine, slots, kept);
  return (int)kept;
}

DEVICE void finish(int *out, float *logprob, const Row &row, const Scan &s, const Candidate &best) {
  const int token = best.score > NO_SCORE ? best.token : row.top;
  *out = token;
  if (logprob) *logprob = (float)((double)row.x[token] - s.top - log((double)s.sum));
}

union Room {
  u64 list[LIST];
  Selection selection;
};

} // namespace

// grid (8 to 64, rows), 512 threads. lists: u64 [rows][4096].
extern "C" __global__ void __launch_bounds__(512) sample_gather(int *out, float *logprob, State *states, u64 *lists,
                                                                const Scan *parts, const float *logits,
                                                                const float *params, int vocab, int vectors,
                                                                long long outStride, long long logprobStride,
                                                                long long stride, long long paramStride) {
  __shared__ Room room;
  __shared__ Candidate winners[WARPS];
  __shared__ u64 slots[WARPS];
  __shared__ unsigned flag, own, base;
  allow_dependents();
  wait_for_predecessors();
  const int r = blockIdx.y;
  const Draw d = drawOf(params + r * paramStride, vocab);
  if (!d.limited) return;
  State &state = states[r];
  const int mode = state.mode, wanted = state.bin;
  if (mode == READY || (mode == CROWDED && blockIdx.x > 0)) return;
  const Scan s = wholeRow(parts + r * PARTS);
  const Row row = rowOf(logits + r * stride, vocab, d, s);
  const bool byCount = state.keep != ALL, byMass = d.topP < 1.f;
  if (mode == CROWDED) {
    Cut cut = everything();
    if (byCount) cut = topK(room.selection, row, d.k);
    if (byMass) cut = topP(room.selection, row, cut, d.topP);
    if (threadIdx.x == 0) state.mode = READY, state.cut = cut;
    return;
  }

  if (threadIdx.x == 0) own = 0;
  __syncthreads();
  overPart(row, vectors, [&](int v, const float (&q)[4]) {
#pragma unroll
    for (int j = 0; j < 4; j++) {
      const float depth = depthOf(row, q[j]);
      if (!massive(depth)) continue;
      const int bin = binOf(row, depth);
      if (bin == wanted || (bin < wanted && mode == WHOLE)) room.list[atomicAdd(&own, 1u)] = entryOf(q[j], v + j);
    }
  });
  __syncthreads();
  u64 *list = lists + (long long)r * LIST;
  if (threadIdx.x == 0) base = own ? atomicAdd(&state.listed, own) : 0;
  __syncthreads();
  for (int i = threadIdx.x; i < (int)own; i += THREADS) list[base + i] = room.list[i];
  if (!lastToArrive(&state.gathered, &flag)) return;

  const int listed = (int)*(volatile unsigned *)&state.listed;
  int padded = 1;
  while (padded < listed) padded <<= 1;
  for (int i = threadIdx.x; i < padded; i += THREADS) room.list[i] = i < listed ? *(volatile u64 *)(list + i) : 0;
  sortDescending(room.list, padded);
  if (threadIdx.x == 0) state.listed = 0;
  int keep = byCount && state.keep < (u64)listed ? (int)state.keep : listed;
  if (byMass) keep = keptByMass(room.list, keep, row, d, byCount, state.left, slots);
  if (mode == BIN) {
    if (threadIdx.x == 0) state.mode = READY, state.cut = {(unsigned)(room.list[keep - 1] >> 32), idOf(room.list[keep - 1])};
    return;
  }
  Candidate best = nobody();
  for (int i = threadIdx.x; i < keep; i += THREADS) {
    const float x = logitOf(room.list[i]);
    const int id = idOf(room.list[i]);
    if (largeEnough(row, d.minP, x)) better(best, (double)x / row.temperature + noise(wordOf(d, id)), id);
  }
  bestOfBlock(best, winners);
  if (threadIdx.x != 0) return;
  state.mode = DONE;
  finish(out + r * outStride, logprob ? logprob + r * logprobStride : nullptr, row, s, best);
}

// grid (8 to 64, rows), 512 threads. candidates: Candidate [rows][64].
extern "C" __global__ void __launch_bounds__(512) sample_draw(int *out, float *logprob, State *states,
                                                              Candidate *candidates, const Scan *parts,
                                                              const float *logits, const float *params, int vocab,
                                                              int vectors, long long outStride, long long logprobStride,
                                                              long long stride, long long paramStride) {
  __shared__ Candidate winners[WARPS];
  __shared__ float glances[WARPS];
  allow_dependents();
  wait_for_predecessors();
  const int r = blockIdx.y;
  const Draw d = drawOf(params + r * paramStride, vocab);
  State &state = states[r];
  if (d.greedy ? blockIdx.x > 0 : d.limited && state.mode == DONE) return;
  const Scan s = wholeRow(parts + r * PARTS);
  const Row row = rowOf(logits + r * stride, vocab, d, s);
  out += r * outStride;
  if (logprob) logprob += r * logprobStride;
  Candidate best = nobody();
  if (d.greedy) {
    if (threadIdx.x == 0) finish(out, logprob, row, s, best);
    return;
  }
  const Cut cut = d.limited ? state.cut : everything();
  const float inverse = (float)(1.0 / row.temperature), margin = 1e-3f + 1e-6f * fabsf((float)row.highest);
  auto takes = [&](float x, int id) { return (!d.limited || stays(cut, orderOf(x), id)) && largeEnough(row, d.minP, x); };

  // A score that some token surely reaches: the best token's, or that of one of the block's first.
  const int size = partSize(vocab, gridDim.x), glance = blockIdx.x * size + 4 * threadIdx.x;
  float reached = threadIdx.x == 0 ? (float)row.highest + leastNoise(wordOf(d, row.top)) : NEG_INF;
  if (4 * (int)threadIdx.x < size && glance < vocab) {
    float q[4];
    unsigned words[4];
    four(row.x, glance, vocab, vectors, q);
    wordsOf(d, glance, words);
#pragma unroll
    for (int j = 0; j < 4; j++)
      if (takes(q[j], glance + j)) reached = fmaxf(reached, q[j] * inverse + leastNoise(words[j]));
  }
  reached = warp_max(reached);
  if (lane_id() == 0) glances[warp_id()] = reached;
  __syncthreads();
  for (int w = 0; w < WARPS; w++) reached = fmaxf(reached, glances[w]);
  reached -= margin;

  overPart(row, vectors, [&](int v, const float (&q)[4]) {
    float gap[4];
    bool near = false;
#pragma unroll
    for (int j = 0; j < 4; j++) {
      gap[j] = reached - q[j] * inverse;
      near |= gap[j] < 22.9f; // noise is at most -ln(2^-33) = 22.87
    }
    if (!near) return;
    unsigned words[4];
    wordsOf(d, v, words);
#pragma unroll
    for (int j = 0; j < 4; j++) {
      // 1 - u is the inverted word; the token can win only when that is below e^-gap.
      if (!((float)(~words[j] >> 1) < __expf(-gap[j]) * (2147483648.f * 1.0001f) + 2.f)) continue;
      if (takes(q[j], v + j)) better(best, (double)q[j] / row.temperature + noise(words[j]), v + j);
    }
  });
  bestOfBlock(best, winners);
  if (threadIdx.x != 0) return;
  candidates += (long long)r * MOST_SPLITS;
  candidates[blockIdx.x] = best;
  __threadfence();
  if (atomicAdd(&state.drawn, 1u) < gridDim.x - 1) return;
  state.drawn = 0;
  __threadfence();
  volatile Candidate *all = candidates;
  for (unsigned i = 0; i < gridDim.x; i++) better(best, all[i].score, all[i].token);
  finish(out, logprob, row, s, best);
}
