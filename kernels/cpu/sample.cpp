// Drawing of tokens: greedy, or Gumbel-max over logits / temperature after top-k, top-p and min-p.
//
// Shapes: logits [rows, vocab], params [rows, 8] (see Ops.sample), out [rows], logprob [rows].
// Rules. x = logit / temperature in double precision; mass e^(x - max x), 0 below e^-40. Order: larger logit first, then
// lower id. top-k keeps the first k; top-p keeps a token when the mass before it is at most top_p of the mass that top-k
// left (so the first always stays); min-p keeps mass >= min_p of the largest. Then the largest x + noise wins, where
// noise = -ln(-ln u), u from Philox 4x32-10 keyed by the seed (src/runtime/random.ts draws the very same numbers).
// Algorithm: limits are found by sorting only the top of the distribution, bucket by bucket. Noise is computed only where
// it can matter: nearly all tokens are ruled out by one vector comparison of their random words.
// Times for a vocabulary of 151,936 (Xeon, AVX-512): greedy 143 us as a plain loop, 24 us in vectors. Plain draw 2.1 ms
// with a logarithm for every token near enough, 1.3 ms with words in vectors but a scalar test, 220 us now. Top-k 50 and
// top-p 3.7 ms with masses and sorted slices of the whole vocabulary, 380 us with a heap of the best k.
#include "kernels.h"
#include "simd.h"
#include <math.h>

namespace sy {
namespace SY_ISA {
namespace {

// Philox 4x32-10 (Salmon et al., SC'11): four words from a 64-bit key and a 128-bit counter.
SY_INLINE void philox(u32 k0, u32 k1, u32 c0, u32 c1, u32 c2, u32 c3, u32 *out) {
#pragma GCC unroll 10
  for (int round = 0; round < 10; round++) {
    u64 a = (u64)0xd2511f53u * c0, b = (u64)0xcd9e8d57u * c2;
    c0 = (u32)(b >> 32) ^ c1 ^ k0;
    c1 = (u32)b;
    c2 = (u32)(a >> 32) ^ c3 ^ k1;
    c3 = (u32)a;
    k0 += 0x9e3779b9u;
    k1 += 0xbb67ae85u;
  }
  out[0] = c0;
  out[1] = c1;
  out[2] = c2;
  out[3] = c3;
}

enum { BLOCKS = W / 2 }; // Philox blocks a vector computes together

// words[4 * i + j]: word j of block `first + i`, for the BLOCKS blocks from `first` on.
SY_INLINE void philoxBlocks(u32 k0, u32 k1, u32 first, u32 position, u32 *words) {
  VU c[4] = {};
  for (int i = 0; i < BLOCKS; i++) c[0][i] = (u32)(first + i);
  c[1] += position;
  const VU m0 = VU{} + 0xd2511f53u, m1 = VU{} + 0xcd9e8d57u;
#pragma GCC unroll 10
  for (int round = 0; round < 10; round++) {
    VU a = multiplyLow(c[0], m0), b = multiplyLow(c[2], m1);
    c[0] = (b >> 32) ^ c[1] ^ k0;
    c[1] = b;
    c[2] = (a >> 32) ^ c[3] ^ k1;
    c[3] = a;
    k0 += 0x9e3779b9u;
    k1 += 0xbb67ae85u;
  }
  const VU low = VU{} + 0xffffffffu;
  VU pairs[2] = {(c[0] & low) | c[1] << 32, (c[2] & low) | c[3] << 32}; // words 0 and 1, words 2 and 3
  u64 stored[2][BLOCKS];
  memcpy(stored, pairs, sizeof stored);
  for (int i = 0; i < BLOCKS; i++) {
    memcpy(words + 4 * i, &stored[0][i], 8);
    memcpy(words + 4 * i + 2, &stored[1][i], 8);
  }
}

// Before: larger logit first, then lower id.
SY_INLINE bool before(const float *logits, i32 a, i32 b) {
  return logits[a] != logits[b] ? logits[a] > logits[b] : a < b;
}

void siftDown(const float *logits, i32 *a, i64 root, i64 n) {
  for (;;) {
    i64 child = 2 * root + 1;
    if (child >= n) return;
    if (child + 1 < n && before(logits, a[child], a[child + 1])) child++;
    if (!before(logits, a[root], a[child])) return;
    i32 t = a[root];
    a[root] = a[child];
    a[child] = t;
    root = child;
  }
}

// Heap sort: in place, no recursion, no library.
void sortTokens(const float *logits, i32 *a, i64 n) {
  for (i64 i = n / 2 - 1; i >= 0; i--) siftDown(logits, a, i, n);
  for (i64 end = n - 1; end > 0; end--) {
    i32 t = a[0];
    a[0] = a[end];
    a[end] = t;
    siftDown(logits, a, 0, end);
  }
}

// The token with the largest logit, low id first; numbers that are not numbers never win.
i64 greedy(const float *x, i64 n) {
  V best = splat(-__builtin_inff());
  i64 i = 0;
  for (; i + W <= n; i += W) best = maxOf(load(x + i), best);
  float top = maxLanes(best);
  for (; i < n; i++) top = x[i] > top ? x[i] : top;
  const V want = splat(top);
  for (i = 0; i + 4 * W <= n; i += 4 * W) { // the piece that holds it
    VI any = {};
    for (int j = 0; j < 4; j++) any |= load(x + i + j * W) == want;
    if (anyLane(any)) break;
  }
  for (; i < n; i++)
    if (x[i] == top) return i;
  return 0;
}

// Puts the tokens that top-k, top-p and min-p leave at the front of a.order and returns how many they are.
// `best` is the token with the largest logit.
i64 limit(const SampleArgs &a, const float *logits, i64 best, i64 topK, double topP, double minP) {
  i64 n = a.vocab, kept = 0;
  double top = a.scaled[best], total = 0, cumulative = 0;
  auto mass = [&](i64 v) {
    double d = a.scaled[v] - top;
    return d >= -40 ? exp(d) : 0;
  };
  if (topK > 0 && topK < n) {
    // A heap of the best so far, the last of them on top.
    for (i64 v = 0; v < topK; v++) a.order[v] = (i32)v;
    for (i64 i = topK / 2 - 1; i >= 0; i--) siftDown(logits, a.order, i, topK);
    for (i64 v = topK; v < n; v++)
      if (before(logits, (i32)v, a.order[0])) {
        a.order[0] = (i32)v;
        siftDown(logits, a.order, 0, topK);
      }
    sortTokens(logits, a.order, topK);
    kept = topK;
    if (topP < 1) {
      for (i64 i = 0; i < topK; i++) total += mass(a.order[i]);
      for (kept = 0; kept < topK && cumulative <= topP * total; kept++) cumulative += mass(a.order[kept]);
    }
  } else {
    for (i64 v = 0; v < n; v++) total += mass(v);
    // Sort one slice of the distribution after another until enough tokens are in order.
    static const double floors[] = {-1, -2, -4, -8, -16, -40, -__builtin_inf()};
    double previous = __builtin_inf();
    i64 sorted = 0;
    for (double floor : floors) {
      i64 from = sorted;
      for (i64 v = 0; v < n; v++) {
        double d = a.scaled[v] - top;
        if (d >= floor && d < previous) a.order[sorted++] = (i32)v;
      }
      previous = floor;
      sortTokens(logits, a.order + from, sorted - from);
      for (; kept < sorted && cumulative <= topP * total; kept++) cumulative += mass(a.order[kept]);
      if (cumulative > topP * total) break;
    }
  }
  while (kept > 0 && !(mass(a.order[kept - 1]) >= minP)) kept--;
  return kept;
}

struct Candidate {
  double score;
  i64 token;
};

// Replaces `best` when x + noise is larger (or equal, with a lower id).
SY_INLINE void consider(Candidate &best, double x, i64 v, u32 word) {
  double score = x - log(-log(((double)word + 0.5) / 4294967296.0));
  if (score > best.score || (score == best.score && v < best.token)) best = {score, v};
}

i64 drawOne(const SampleArgs &a, const float *logits, const float *p) {
  i64 n = a.vocab, top = greedy(logits, n);
  double temperature = p[0], topP = p[1], minP = p[2];
  if (!(temperature > 0)) return top;
  u32 key[3], words[4]; // seed low, seed high, position
  memcpy(key, p + 4, sizeof key);
  i64 topK = p[3] > 0 ? (i64)p[3] : 0;
  double highest = (double)logits[top] / temperature;
  // The likeliest token first, so that most others can be ruled out cheaply.
  Candidate best = {-__builtin_inf(), top};
  philox(key[0], key[1], (u32)(top / 4), key[2], 0, 0, words);
  consider(best, highest, top, words[top & 3]);

  if ((topK > 0 && topK < n) || topP < 1) {
    for (i64 v = 0; v < n; v++) a.scaled[v] = (double)logits[v] / temperature;
    i64 kept = limit(a, logits, top, topK, topP < 1 ? topP : 1, minP);
    for (i64 i = 0; i < kept; i++) {
      i64 v = a.order[i];
      if (a.scaled[v] + 22.9 < best.score) continue;
      philox(key[0], key[1], (u32)(v / 4), key[2], 0, 0, words);
      consider(best, a.scaled[v], v, words[v & 3]);
    }
    return best.token;
  }

  // min-p alone needs no order.
  double lowest = minP > 0 ? log(minP) - 1e-9 : -__builtin_inf();
  auto exactly = [&](i64 v, u32 word) {
    double x = (double)logits[v] / temperature;
    if (v == top || (minP > 0 && (x - highest < lowest || !(exp(x - highest) >= minP)))) return;
    consider(best, x, v, word);
  };
  // A token whose scaled logit lies `gap` below the best score so far needs noise above gap. Noise is -ln(-ln u) and
  // -ln u >= 1 - u, so it can win only when 1 - u < e^-gap: in words, when the inverted word is below e^-gap * 2^32.
  // Single precision with a margin rules out nearly all tokens; what is left is computed exactly.
  const V inverse = splat((float)(1 / temperature)), margin = splat(1e-3f + 1e-6f * (float)__builtin_fabs(highest));
  u32 many[4 * BLOCKS];
  i64 v = 0;
  for (; v + 4 * BLOCKS <= n; v += 4 * BLOCKS) {
    V score = splat((float)best.score) - margin, gap[2];
    VI near = {};
    for (int j = 0; j < 2; j++) {
      gap[j] = score - load(logits + v + j * W) * inverse;
      near |= gap[j] < splat(22.9f); // noise is at most -ln(2^-33) = 22.87
    }
    if (!anyLane(near)) continue;
    philoxBlocks(key[0], key[1], (u32)(v / 4), key[2], many);
    for (int j = 0; j < 2; j++) {
      V half = __builtin_convertvector((VI)(~loadBits(many + j * W)) >> 1 & 0x7fffffff, V);
      VI pass = half < vexp(-gap[j]) * splat(2147483648.f * 1.00001f) + splat(2.f);
      if (!anyLane(pass)) continue;
      i32 lanes[W];
      memcpy(lanes, &pass, sizeof lanes);
      for (int i = 0; i < W; i++)
        if (lanes[i]) exactly(v + j * W + i, many[j * W + i]);
    }
  }
  for (; v < n; v++) {
    philox(key[0], key[1], (u32)(v / 4), key[2], 0, 0, words);
    exactly(v, words[v & 3]);
  }
  return best.token;
}

float logProbability(const float *logits, i64 n, i64 token) {
  float top = logits[greedy(logits, n)];
  V shift = splat(top);
  double sum = 0;
  for (i64 i = 0; i < n; i += 256) {
    V part = zero();
    i64 end = i + 256 < n ? i + 256 : n, j = i;
    for (; j + W <= end; j += W) part = part + vexp(load(logits + j) - shift);
    for (; j < end; j++) sum += vexp(splat(logits[j] - top))[0];
    sum += sumLanes(part);
  }
  return (float)((double)logits[token] - top - log(sum));
}

} // namespace

int sample(const SampleArgs &a, i64 rows) {
  for (i64 r = 0; r < rows; r++) {
    const float *logits = a.logits.row(r);
    i64 token = drawOne(a, logits, a.params.row(r));
    a.out[r * a.outStride] = (i32)token;
    if (a.logprob.p) a.logprob.row(r)[0] = logProbability(logits, a.vocab, token);
  }
  return OK;
}

} // namespace SY_ISA
} // namespace sy
