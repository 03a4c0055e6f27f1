// Drawing of tokens: greedy, or Gumbel-max over logits / temperature after top-k, top-p and min-p.
//
// Shapes: logits f32 [rows, vocab], vocab <= 2^20; params [rows, 8] (see Ops.sample); out i32, logprob f32 [rows] or null.
// Rules: those of kernels/cpu/sample.cpp. Order: larger logit first, then lower id. Noise of a token: -ln(-ln u), u from Philox
// 4x32-10 keyed by the seed, computed in double precision where it can decide.
// Algorithm: sample_scan: largest logit, its id and the sum of exponentials of 1/8 of a row a block. sample_draw: rows at
// temperature 0 end at once. Plain rows are drawn by 8 blocks, the last of which compares the 8 candidates; a token is looked
// at closely only if its random word can make it win (1 - u < e^-gap, as on the CPU). Rows with top-k or top-p first find the
// last token that stays, as a logit and an id, by radix selection on logits as ordered words, 8 bits a pass: counts for top-k,
// masses as 64-bit fixed point for top-p, so that the order of additions does not matter. Nothing is sorted.
// Versions and times: not measured yet.
#include "elements.cuh"

namespace {

using namespace el;

constexpr int SPLITS = 8, THREADS = 512, COPIES = 8;
constexpr float MASS_ONE = 17592186044416.f; // 2^44: vocabularies up to 2^20 sum in 64 bits whatever they hold

struct Scan {
  float top, sum;
  int at, unused;
};

struct Candidate {
  double score;
  int token, unused;
};

DEVICE unsigned orderOf(float x) {
  if (x != x) return 0u;
  const unsigned b = __float_as_uint(x + 0.f); // -0 becomes 0
  return b & 0x80000000u ? ~b : b | 0x80000000u;
}
DEVICE float numberOf(unsigned key) { return __uint_as_float(key & 0x80000000u ? key & 0x7fffffffu : ~key); }

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

DEVICE double noise(unsigned word) { return -log(-log(((double)word + 0.5) / 4294967296.0)); }

DEVICE void better(Candidate &best, double score, int token) {
  if (score > best.score || (score == best.score && token < best.token)) best.score = score, best.token = token;
}

DEVICE void merge(Scan &a, float top, float sum, int at) {
  if (top > a.top) {
    a.sum = a.sum * __expf(a.top - top) + sum;
    a.top = top, a.at = at;
  } else {
    a.sum += sum * __expf(top - a.top);
    if (top == a.top && at < a.at) a.at = at;
  }
}

constexpr float LOWEST = -3.402823466e38f;
constexpr int NOWHERE = 0x7fffffff;

template <int V> DEVICE Scan scanPart(const float *x, int from, int to) {
  Scan s = {LOWEST, 0.f, NOWHERE, 0};
  for (int c = from + threadIdx.x * V; c < to; c += THREADS * V) {
    float v[V];
    load<V>(x + c, v);
    float most = s.top;
#pragma unroll
    for (int j = 0; j < V; j++)
      if (v[j] > most || (v[j] == most && s.at == NOWHERE)) most = v[j], s.at = c + j;
    s.sum *= __expf(s.top - most);
    s.top = most;
#pragma unroll
    for (int j = 0; j < V; j++) s.sum += __expf(v[j] - most);
  }
  return s;
}

// Elements a block of a row looks at: a multiple of 4, so that a Philox block belongs to one.
DEVICE int partSize(int vocab) { return ((vocab + SPLITS - 1) / SPLITS + 3) / 4 * 4; }

} // namespace

// grid (8, rows), 512 threads. parts: Scan [rows][8].
extern "C" __global__ void __launch_bounds__(512) sample_scan(Scan *parts, const float *logits, int vocab, int vectors,
                                                              long long stride) {
  __shared__ Scan warps[THREADS / 32];
  allow_dependents();
  wait_for_predecessors();
  const float *x = logits + blockIdx.y * stride;
  const int size = partSize(vocab), from = blockIdx.x * size;
  const int to = from + size < vocab ? from + size : vocab;
  Scan s = vectors ? scanPart<4>(x, from, to) : scanPart<1>(x, from, to);
#pragma unroll
  for (int d = 16; d > 0; d >>= 1)
    merge(s, __shfl_xor_sync(0xffffffffu, s.top, d), __shfl_xor_sync(0xffffffffu, s.sum, d),
          __shfl_xor_sync(0xffffffffu, s.at, d));
  if (lane_id() == 0) warps[warp_id()] = s;
  __syncthreads();
  if (threadIdx.x == 0) {
    for (int w = 1; w < THREADS / 32; w++) merge(s, warps[w].top, warps[w].sum, warps[w].at);
    parts[blockIdx.y * SPLITS + blockIdx.x] = s;
  }
}

namespace {

// What the tokens of a row are compared with: those that stay come before or at (key, id) in the order.
struct Cut {
  unsigned key;
  int id;
};

struct Row {
  const float *x;
  int vocab, top;
  double temperature, inverse, highest;
};

DEVICE bool stays(const Cut &cut, unsigned key, int id) { return key > cut.key || (key == cut.key && id <= cut.id); }

DEVICE u64 massOf(const Row &row, float x) {
  const float d = (float)((double)x * row.inverse - row.highest);
  return d >= -40.f ? (u64)(expf(fminf(d, 0.f)) * MASS_ONE + 0.5f) : 0;
}

struct Selection {
  u64 bins[256 * COPIES];
  u64 folded[256];
  unsigned present[256];
  u64 left;
  unsigned digit, found;
};

// The digit of the last token that stays, from histograms of one pass, highest digit first: by weight, the last digit with
// tokens before which there is at most `left`; by count, the first at which the count reaches `left`. Takes what lies
// before it off `left`.
DEVICE void selectDigit(Selection &s, bool byWeight) {
  __syncthreads();
  if (threadIdx.x < 256) {
    u64 sum = 0;
    for (int i = 0; i < COPIES; i++) sum += s.bins[threadIdx.x * COPIES + i];
    s.folded[threadIdx.x] = sum;
  }
  __syncthreads();
  if (threadIdx.x < 32) {
    const int lane = threadIdx.x, high = 255 - 8 * lane;
    const u64 left = s.left;
    u64 sum = 0;
    for (int i = 0; i < 8; i++) sum += s.folded[high - i];
    u64 upTo = sum;
#pragma unroll
    for (int d = 1; d < 32; d <<= 1) {
      const u64 other = __shfl_up_sync(0xffffffffu, upTo, d);
      if (lane >= d) upTo += other;
    }
    u64 before = upTo - sum, mine = 0;
    int digit = -1;
    for (int i = 0; i < 8; i++) {
      const u64 here = s.folded[high - i];
      const bool take = byWeight ? s.present[high - i] && before <= left : digit < 0 && before < left && before + here >= left;
      if (take) digit = high - i, mine = before;
      before += here;
    }
    const unsigned have = __ballot_sync(0xffffffffu, digit >= 0);
    // By weight the last such digit counts; by count there is one at most.
    if (have == 0) {
      if (lane == 0) s.found = 0;
    } else if (lane == 31 - __clz(have)) {
      s.digit = digit, s.left = left - mine, s.found = 1;
    }
  }
  __syncthreads();
}

DEVICE void clear(Selection &s) {
  __syncthreads();
  for (int i = threadIdx.x; i < 256 * COPIES; i += THREADS) s.bins[i] = 0;
  if (threadIdx.x < 256) s.present[threadIdx.x] = 0;
  __syncthreads();
}

// Among tokens that stay by `cut` and whose logit has the key `key`: the id of the one at place `count` from 1, lowest first.
DEVICE int idAtPlace(Selection &s, const Row &row, const Cut &cut, unsigned key, u64 count) {
  unsigned prefix = 0, mask = 0;
  if (threadIdx.x == 0) s.left = count;
  for (int shift = 16; shift >= 0; shift -= 8) {
    clear(s);
    for (int v = threadIdx.x; v < row.vocab; v += THREADS) {
      if (orderOf(row.x[v]) != key || !stays(cut, key, v)) continue;
      const unsigned turned = 0xffffffu - (unsigned)v;
      if ((turned & mask) == prefix) atomicAdd(&s.bins[(turned >> shift & 255u) * COPIES + (lane_id() & (COPIES - 1))], 1ull);
    }
    selectDigit(s, false);
    if (!s.found) return NOWHERE; // fewer than that
    prefix |= s.digit << shift;
    mask |= 255u << shift;
  }
  return (int)(0xffffffu - prefix);
}

DEVICE Cut topK(Selection &s, const Row &row, u64 k) {
  const Cut all = {1u, NOWHERE}; // numbers; their keys are above 1
  unsigned prefix = 0, mask = 0;
  if (threadIdx.x == 0) s.left = k;
  for (int shift = 24; shift >= 0; shift -= 8) {
    clear(s);
    for (int v = threadIdx.x; v < row.vocab; v += THREADS) {
      const unsigned key = orderOf(row.x[v]);
      if (key > 1u && (key & mask) == prefix) atomicAdd(&s.bins[(key >> shift & 255u) * COPIES + (lane_id() & (COPIES - 1))], 1ull);
    }
    selectDigit(s, false);
    if (!s.found) return all;
    prefix |= s.digit << shift;
    mask |= 255u << shift;
  }
  const u64 left = s.left;
  __syncthreads();
  return {prefix, idAtPlace(s, row, all, prefix, left)};
}

DEVICE Cut topP(Selection &s, const Row &row, const Cut &cut, double p) {
  u64 total = 0;
  for (int v = threadIdx.x; v < row.vocab; v += THREADS) {
    const float x = row.x[v];
    if (stays(cut, orderOf(x), v)) total += massOf(row, x);
  }
#pragma unroll
  for (int d = 16; d > 0; d >>= 1) total += __shfl_xor_sync(0xffffffffu, total, d);
  __syncthreads();
  if (threadIdx.x == 0) s.left = 0;
  __syncthreads();
  if (lane_id() == 0) atomicAdd(&s.left, total);
  __syncthreads();
  if (threadIdx.x == 0) s.left = p > 0 ? (u64)(p * (double)s.left) : 0;
  unsigned prefix = 0, mask = 0;
  for (int shift = 24; shift >= 0; shift -= 8) {
    clear(s);
    for (int v = threadIdx.x; v < row.vocab; v += THREADS) {
      const float x = row.x[v];
      const unsigned key = orderOf(x);
      if (!stays(cut, key, v) || (key & mask) != prefix) continue;
      const unsigned digit = key >> shift & 255u;
      s.present[digit] = 1;
      const u64 mass = massOf(row, x);
      if (mass) atomicAdd(&s.bins[digit * COPIES + (lane_id() & (COPIES - 1))], mass);
    }
    selectDigit(s, true);
    if (!s.found) return cut;
    prefix |= s.digit << shift;
    mask |= 255u << shift;
  }
  const u64 left = s.left, mass = massOf(row, numberOf(prefix));
  __syncthreads();
  // Equal logits: as many stay as have at most `left` before them.
  const Cut equal = {prefix, prefix == cut.key ? cut.id : NOWHERE};
  if (mass == 0) return equal;
  const int id = idAtPlace(s, row, equal, prefix, left / mass + 1);
  return {prefix, id == NOWHERE ? equal.id : id};
}

} // namespace

// grid (8, rows), 512 threads. candidates: Candidate [rows][8]; arrived: zeroed once, left zeroed.
extern "C" __global__ void __launch_bounds__(512) sample_draw(int *out, float *logprob, const Scan *parts,
                                                              Candidate *candidates, int *arrived, const float *logits,
                                                              const float *params, int vocab, long long outStride,
                                                              long long logprobStride, long long stride,
                                                              long long paramStride) {
  __shared__ Selection selection;
  __shared__ Candidate warps[THREADS / 32];
  allow_dependents();
  wait_for_predecessors();
  const int r = blockIdx.y, split = blockIdx.x;
  const float *p = params + r * paramStride;
  const float temperature = p[0], minP = p[2];
  const bool greedy = !(temperature > 0.f);
  const u64 k = p[3] > 0.f ? (u64)p[3] : 0;
  const bool limited = (k > 0 && k < (u64)vocab) || p[1] < 1.f;
  if ((greedy || limited) && split > 0) return;

  Scan s = parts[r * SPLITS];
  for (int i = 1; i < SPLITS; i++) merge(s, parts[r * SPLITS + i].top, parts[r * SPLITS + i].sum, parts[r * SPLITS + i].at);
  if (s.at == NOWHERE) s.at = 0;
  const float *x = logits + r * stride;
  auto finish = [&](int token) {
    out[r * outStride] = token;
    if (logprob) logprob[r * logprobStride] = (float)((double)x[token] - s.top - log((double)s.sum));
  };
  if (greedy) {
    if (threadIdx.x == 0) finish(s.at);
    return;
  }

  Row row = {x, vocab, s.at, (double)temperature, 1.0 / (double)temperature, (double)x[s.at] / (double)temperature};
  Cut cut = {1u, NOWHERE};
  if (limited) {
    if (k > 0 && k < (u64)vocab) cut = topK(selection, row, k);
    if (p[1] < 1.f) cut = topP(selection, row, cut, (double)p[1]);
  }

  const unsigned seedLow = __float_as_uint(p[4]), seedHigh = __float_as_uint(p[5]), position = __float_as_uint(p[6]);
  // The likeliest token first, so that most others can be ruled out by their random word.
  unsigned words[4];
  philox(seedLow, seedHigh, (unsigned)row.top / 4u, position, words);
  Candidate best = {row.highest + noise(words[row.top & 3]), row.top, 0};
  const float inverse = (float)row.inverse, margin = 1e-3f + 1e-6f * fabsf((float)row.highest);
  const int size = limited ? (vocab + 3) / 4 * 4 : partSize(vocab), from = limited ? 0 : split * size;
  const int to = from + size < vocab ? from + size : vocab;
  for (int v = from + 4 * threadIdx.x; v < to; v += 4 * THREADS) {
    float gap[4];
    bool near = false;
    const float score = (float)best.score - margin;
#pragma unroll
    for (int j = 0; j < 4; j++) {
      gap[j] = v + j < to ? score - x[v + j] * inverse : 1e30f;
      near |= gap[j] < 22.9f; // noise is at most -ln(2^-33) = 22.87
    }
    if (!near) continue;
    philox(seedLow, seedHigh, (unsigned)v / 4u, position, words);
#pragma unroll
    for (int j = 0; j < 4; j++) {
      // 1 - u is the inverted word; the token can win only when that is below e^-gap.
      if (!((float)(~words[j] >> 1) < __expf(-gap[j]) * (2147483648.f * 1.0001f) + 2.f)) continue;
      const double scaled = (double)x[v + j] / row.temperature;
      if (limited && !stays(cut, orderOf(x[v + j]), v + j)) continue;
      if (minP > 0.f) {
        const double d = scaled - row.highest;
        if (!((d >= -40 ? exp(d) : 0.0) >= (double)minP)) continue;
      }
      better(best, scaled + noise(words[j]), v + j);
    }
  }
#pragma unroll
  for (int d = 16; d > 0; d >>= 1)
    better(best, __shfl_xor_sync(0xffffffffu, best.score, d), __shfl_xor_sync(0xffffffffu, best.token, d));
  if (lane_id() == 0) warps[warp_id()] = best;
  __syncthreads();
  if (threadIdx.x != 0) return;
  for (int w = 1; w < THREADS / 32; w++) better(best, warps[w].score, warps[w].token);
  if (limited) {
    finish(best.token);
    return;
  }
  candidates[r * SPLITS + split] = best;
  __threadfence();
  if (atomicAdd(arrived + r, 1) < SPLITS - 1) return;
  arrived[r] = 0;
  __threadfence();
  volatile Candidate *all = candidates + r * SPLITS;
  for (int i = 0; i < SPLITS; i++) better(best, all[i].score, all[i].token);
  finish(best.token);
}
