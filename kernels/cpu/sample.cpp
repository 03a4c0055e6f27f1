// Drawing of tokens: greedy, or Gumbel-max over logits / temperature after top-k, top-p and min-p.
//
// Shapes: logits [rows, vocab], params [rows, 8] (see Ops.sample), out [rows], logprob [rows].
// Rules. x = logit / temperature in double precision; mass e^(x - max x), 0 below e^-40. Order: larger logit first, then
// lower id. top-k keeps the first k; top-p keeps a token when the mass before it is at most top_p of the mass that top-k
// left (so the first always stays); min-p keeps mass >= min_p of the largest. Then the largest x + noise wins, where
// noise = -ln(-ln u), u from Philox 4x32-10 keyed by the seed (src/runtime/random.ts draws the very same numbers).
// Algorithm: limits are found by sorting only the top of the distribution, bucket by bucket. Noise is computed only where
// it can matter: -ln u >= 1 - u, so a token whose 1 - u exceeds e^(x - best) cannot win and needs no logarithm.
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

i64 greedy(const float *x, i64 n) {
  i64 at = 0;
  for (i64 i = 1; i < n; i++)
    if (x[i] > x[at] || x[at] != x[at]) at = i;
  return at;
}

// Marks the tokens that top-k, top-p and min-p leave. `best` is the token with the largest logit.
void limit(const SampleArgs &a, const float *logits, i64 best, i64 topK, double topP, double minP) {
  i64 n = a.vocab, kept = 0, sorted = 0;
  bool byCount = topK > 0 && topK < n;
  double top = a.scaled[best], total = 0, target = 0;
  for (i64 v = 0; v < n; v++) {
    double d = a.scaled[v] - top;
    a.mass[v] = d >= -40 ? exp(d) : 0;
    a.keep[v] = 0;
  }
  if (!byCount) {
    for (i64 v = 0; v < n; v++) total += a.mass[v];
    target = topP * total;
  }
  double cumulative = 0, previous = __builtin_inf();
  static const double floors[] = {-2, -4, -8, -16, -40, -__builtin_inf()};
  // Sort one slice of the distribution after another until enough tokens are in order.
  for (double floor : floors) {
    i64 from = sorted;
    for (i64 v = 0; v < n; v++) {
      double d = a.scaled[v] - top;
      if (d >= floor && d < previous) a.order[sorted++] = (i32)v;
    }
    previous = floor;
    sortTokens(logits, a.order + from, sorted - from);
    if (byCount) {
      if (sorted >= topK) break;
    } else {
      for (; from < sorted; from++) {
        if (cumulative > target) break;
        cumulative += a.mass[a.order[from]];
        kept = from + 1;
      }
      if (cumulative > target) break;
    }
  }
  if (byCount) {
    kept = topK < sorted ? topK : sorted;
    for (i64 i = 0; i < kept; i++) total += a.mass[a.order[i]];
    target = topP * total;
    if (topP < 1)
      for (i64 i = 0; i < kept; i++) {
        if (cumulative > target) {
          kept = i;
          break;
        }
        cumulative += a.mass[a.order[i]];
      }
  }
  for (i64 i = 0; i < kept; i++)
    if (a.mass[a.order[i]] >= minP) a.keep[a.order[i]] = 1;
}

// e^-i, an upper bound of e^gap for gap in (-i-1, -i]; the noise of a token is at most -ln(2^-33) = 22.87.
const double POWERS[] = {1.0, 0.36787944117144233, 0.1353352832366127, 0.049787068367863944, 0.01831563888873418,
                         0.006737946999085467, 0.0024787521766663585, 0.0009118819655545162, 0.00033546262790251185,
                         0.00012340980408667956, 4.5399929762484854e-05, 1.670170079024566e-05, 6.14421235332821e-06,
                         2.2603294069810542e-06, 8.315287191035679e-07, 3.059023205018258e-07, 1.1253517471925912e-07,
                         4.139937718785167e-08, 1.522997974471263e-08, 5.602796437537268e-09, 2.061153622438558e-09,
                         7.582560427911907e-10, 2.789468092868925e-10, 1.026187963170189e-10};

struct Candidate {
  double score;
  i64 token;
};

// Considers token v with scaled logit x: replaces `best` when x + noise is larger (or equal, with a lower id).
SY_INLINE void consider(Candidate &best, double x, i64 v, u32 word) {
  double u = ((double)word + 0.5) / 4294967296.0, gap = x - best.score;
  // -ln u >= 1 - u: when 1 - u exceeds e^gap, the noise is below -gap. The margin covers rounding.
  if (gap < 0 && 1 - u > 1.000001 * POWERS[(int)-gap]) return;
  double score = x - log(-log(u));
  if (score > best.score || (score == best.score && v < best.token)) best = {score, v};
}

i64 drawOne(const SampleArgs &a, const float *logits, const float *p) {
  i64 n = a.vocab, top = greedy(logits, n);
  double temperature = p[0], topP = p[1], minP = p[2];
  if (!(temperature > 0)) return top;
  u32 key[3]; // seed low, seed high, position
  memcpy(key, p + 4, sizeof key);
  i64 topK = p[3] > 0 ? (i64)p[3] : 0;
  bool limited = (topK > 0 && topK < n) || topP < 1;
  if (limited) {
    for (i64 v = 0; v < n; v++) a.scaled[v] = (double)logits[v] / temperature;
    limit(a, logits, top, topK, topP < 1 ? topP : 1, minP);
  }
  double highest = (double)logits[top] / temperature, lowest = minP > 0 ? log(minP) - 1e-9 : -__builtin_inf();

  u32 words[4];
  philox(key[0], key[1], (u32)(top / 4), key[2], 0, 0, words);
  // The likeliest token first, so that most others can be ruled out cheaply.
  double u = ((double)words[top & 3] + 0.5) / 4294967296.0;
  Candidate best = {highest - log(-log(u)), top};
  for (i64 b = 0; b < (n + 3) / 4; b++) {
    bool drawn = false;
    for (i64 v = 4 * b, end = v + 4 < n ? v + 4 : n; v < end; v++) {
      if (limited && !a.keep[v]) continue;
      double x = limited ? a.scaled[v] : (double)logits[v] / temperature;
      if (!(x + 22.9 >= best.score)) continue;
      if (!limited && minP > 0 && (x - highest < lowest || !(exp(x - highest) >= minP))) continue;
      if (!drawn) philox(key[0], key[1], (u32)b, key[2], 0, 0, words);
      drawn = true;
      if (v != top) consider(best, x, v, words[v & 3]);
    }
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
