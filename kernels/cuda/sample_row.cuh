// What the kernels of sample.cu share: a row with the parameters of its draw, the order of its tokens, their masses, and noise.
// Every kernel finds the same bins and masses, so nothing of a token but its logit is kept between them.
#pragma once
#include "elements.cuh"

namespace sampling {

using namespace el;

// A row is scanned in 32 parts whatever the number of rows, so that its sum of exponentials always has the same bits.
constexpr int PARTS = 32, MOST_SPLITS = 64, THREADS = 512, WARPS = THREADS / 32;
constexpr float LOWEST = -3.402823466e38f, LOG2E = 1.4426950408889634f;
constexpr int NOWHERE = 0x7fffffff;
// Masses in fixed point, so that the order of additions has no part in a sum: vocabularies up to 2^20 fit 64 bits whatever they hold.
constexpr float MASS_ONE = 17592186044416.f; // 2^44

struct Scan {
  float top, sum, least; // least: of the numbers above -infinity
  int at;
};

DEVICE void merge(Scan &a, float top, float sum, float least, int at) {
  a.least = fminf(a.least, least);
  if (top > a.top) {
    a.sum = a.sum * __expf(a.top - top) + sum;
    a.top = top, a.at = at;
  } else {
    a.sum += sum * __expf(top - a.top);
    if (top == a.top && at < a.at) a.at = at;
  }
}

// Over a warp; every lane gets it.
DEVICE void mergeLanes(Scan &s) {
#pragma unroll
  for (int d = 16; d > 0; d >>= 1)
    merge(s, __shfl_xor_sync(0xffffffffu, s.top, d), __shfl_xor_sync(0xffffffffu, s.sum, d),
          __shfl_xor_sync(0xffffffffu, s.least, d), __shfl_xor_sync(0xffffffffu, s.at, d));
}

// Of a whole row, from its parts.
DEVICE Scan wholeRow(const Scan *parts) {
  Scan s = parts[lane_id()];
  mergeLanes(s);
  if (s.at == NOWHERE) s.at = 0;
  return s;
}

struct Draw {
  float temperature, topP, minP;
  u64 k; // 0: no top-k
  unsigned seedLow, seedHigh, position;
  bool greedy, limited;
};

DEVICE Draw drawOf(const float *p, int vocab) {
  Draw d = {p[0], p[1], p[2], p[3] > 0.f ? (u64)p[3] : 0, __float_as_uint(p[4]), __float_as_uint(p[5]), __float_as_uint(p[6])};
  if (d.k >= (u64)vocab) d.k = 0;
  d.greedy = !(d.temperature > 0.f);
  d.limited = !d.greedy && (d.k > 0 || d.topP < 1.f);
  return d;
}

// Tokens lie at a depth below the best one: log2 of its mass over theirs. From FAR on (e^-40) they have no mass and cannot win:
// noise is between -3.2 and 22.9. Bins divide the depths of a row evenly.
constexpr float FAR = 57.70780163555854f;
constexpr int BINS = 2048;

struct Row {
  const float *x;
  int vocab, top;
  float most, steep, scale;
  double temperature, highest;
};

DEVICE Row rowOf(const float *x, int vocab, const Draw &d, const Scan &s) {
  Row row = {x, vocab, s.at, x[s.at], (float)(1.4426950408889634 / (double)d.temperature), 0.f, (double)d.temperature};
  row.highest = (double)row.most / row.temperature;
  const float range = fminf((row.most - s.least) * row.steep, FAR);
  row.scale = range > 0.f ? (float)(BINS - 1) / range : 0.f;
  return row;
}

DEVICE float depthOf(const Row &row, float x) { return (row.most - x) * row.steep; }
DEVICE bool massive(float depth) { return depth < FAR; } // not so: no number, or too far
// Grows with depth, as both roundings do.
DEVICE int binOf(const Row &row, float depth) {
  const int bin = (int)(depth * row.scale);
  return bin < BINS - 1 ? bin : BINS - 1;
}
DEVICE u64 massAt(float depth) { return massive(depth) ? (u64)(fast_exp2(-depth) * MASS_ONE + 0.5f) : 0; }
DEVICE u64 massOf(const Row &row, float x) { return massAt(depthOf(row, x)); }
// The mass that may lie before a token that stays.
DEVICE u64 shareOf(float p, u64 total) { return p > 0.f ? (u64)((double)p * (double)total) : 0; }

// Larger logit first, then lower id.
DEVICE unsigned orderOf(float x) {
  if (x != x) return 0u;
  const unsigned b = __float_as_uint(x + 0.f); // -0 becomes 0
  return b & 0x80000000u ? ~b : b | 0x80000000u;
}
DEVICE float numberOf(unsigned key) { return __uint_as_float(key & 0x80000000u ? key & 0x7fffffffu : ~key); }

// The last token that stays.
struct Cut {
  unsigned key;
  int id;
};
DEVICE Cut everything() { return {1u, NOWHERE}; } // numbers; their keys are above 1
DEVICE bool stays(const Cut &cut, unsigned key, int id) { return key > cut.key || (key == cut.key && id <= cut.id); }

DEVICE bool largeEnough(const Row &row, float minP, float x) {
  if (!(minP > 0.f)) return true;
  const double d = (double)x / row.temperature - row.highest;
  return (d >= -40 ? exp(d) : 0.0) >= (double)minP;
}

DEVICE void philox(unsigned k0, unsigned k1, unsigned c0, unsigned c1, unsigned (&out)[4]) {
  unsigned c2 = 0, c3 = 0;
#pragma unroll
  for (int round = 0; round < 10; round++) {
    const unsigned h0 = __umulhi(0xd2511f53u, c0), l0 = 0xd2511f53u * c0;
    const unsigned h1 = __umulhi(0xcd9e8d57u, c2), l1 = 0xcd9e8d57u * c2;
    c0 = h1 ^ c1 ^ k0;
    c1 = l1;
    c2 = h0 ^ c3 ^ k1;
    c3 = l0;
    k0 += 0x9e3779b9u;
    k1 += 0xbb67ae85u;
  }
  out[0] = c0, out[1] = c1, out[2] = c2, out[3] = c3;
}
DEVICE void wordsOf(const Draw &d, int token, unsigned (&words)[4]) {
  philox(d.seedLow, d.seedHigh, (unsigned)token / 4u, d.position, words);
}
DEVICE unsigned wordOf(const Draw &d, int token) {
  unsigned words[4];
  wordsOf(d, token, words);
  return token & 2 ? token & 1 ? words[3] : words[2] : token & 1 ? words[1] : words[0];
}

DEVICE double noise(unsigned word) { return -log(-log(((double)word + 0.5) / 4294967296.0)); }
// A little less than the noise, never more (by more than 1e-5): with q = 1 - u, -ln u is at most q / (1 - q).
DEVICE float leastNoise(unsigned word) {
  const float q = ((float)~word + 0.5f) * 2.3283064365386963e-10f;
  return __logf(1.f - q) - __logf(q);
}

struct Candidate {
  double score;
  int token, unused;
};
DEVICE void better(Candidate &best, double score, int token) {
  if (score > best.score || (score == best.score && token < best.token)) best.score = score, best.token = token;
}
constexpr double NO_SCORE = -1.7976931348623157e308;
DEVICE Candidate nobody() { return {NO_SCORE, NOWHERE, 0}; }

// Of a block; thread 0 gets it. `slots`: one for each warp.
DEVICE void bestOfBlock(Candidate &best, Candidate *slots) {
#pragma unroll
  for (int d = 16; d > 0; d >>= 1)
    better(best, __shfl_xor_sync(0xffffffffu, best.score, d), __shfl_xor_sync(0xffffffffu, best.token, d));
  if (lane_id() == 0) slots[warp_id()] = best;
  __syncthreads();
  if (threadIdx.x == 0)
    for (int w = 1; w < WARPS; w++) better(best, slots[w].score, slots[w].token);
}

// Sum over the threads before this one; `total` over all. `slots`: one for each warp.
DEVICE u64 sumBefore(u64 x, u64 *slots, u64 &total) {
  u64 upTo = x;
#pragma unroll
  for (int d = 1; d < 32; d <<= 1) {
    const u64 other = __shfl_up_sync(0xffffffffu, upTo, d);
    if (lane_id() >= d) upTo += other;
  }
  __syncthreads();
  if (lane_id() == 31) slots[warp_id()] = upTo;
  __syncthreads();
  u64 before = upTo - x;
  total = 0;
  for (int w = 0; w < WARPS; w++) {
    if (w < warp_id()) before += slots[w];
    total += slots[w];
  }
  return before;
}

// True in the block that arrives last, which sees what all have written; the counter is back at 0 then. All threads call it.
DEVICE bool lastToArrive(unsigned *counter, unsigned *flag) {
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) {
    *flag = atomicAdd(counter, 1u) == gridDim.x - 1;
    if (*flag) *counter = 0;
  }
  __syncthreads();
  if (*flag) __threadfence();
  return *flag;
}

// Elements a block of a row looks at: a multiple of 4, so that a Philox block belongs to one.
DEVICE int partSize(int vocab, int parts) { return ((vocab + parts - 1) / parts + 3) / 4 * 4; }

// Four logits from v on; beyond the end there are none that count. Vectors only where `vocab` is a multiple of 4.
DEVICE void four(const float *x, int v, int to, int vectors, float (&q)[4]) {
  if (vectors) {
    load<4>(x + v, q);
    return;
  }
#pragma unroll
  for (int j = 0; j < 4; j++) q[j] = v + j < to ? x[v + j] : NEG_INF;
}

// The block's part of a row: use(v, q) for every four tokens of it from v on, while the next four are under way.
template <class Use> DEVICE void overPart(const Row &row, int vectors, Use use) {
  const int size = partSize(row.vocab, gridDim.x), from = blockIdx.x * size;
  const int to = from + size < row.vocab ? from + size : row.vocab;
  int v = from + 4 * threadIdx.x;
  if (v >= to) return;
  float q[4], next[4] = {};
  four(row.x, v, to, vectors, q);
  while (true) {
    const int after = v + 4 * THREADS;
    if (after < to) four(row.x, after, to, vectors, next);
    use(v, q);
    if (after >= to) return;
    v = after;
#pragma unroll
    for (int j = 0; j < 4; j++) q[j] = next[j];
  }
}

} // namespace sampling
