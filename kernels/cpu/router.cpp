// Choice of experts: scores, optional correction bias, optional group limit, top-k, weights.
//
// Shapes: logits [rows, experts], bias [experts], ids and weights [rows, topK], best first; ties go to the lower id.
// Rules: DeepSeek-V3's reference (scores without the bias become the weights; the choice uses scores plus bias; groups
// are ranked by their best or by the sum of their two best choice scores) and Mixtral/Qwen (softmax, maybe renormalized).
// 0.8 us for the best 8 of 128 on a Xeon with AVX-512. Each row is independent. Selection is topK passes over the scores: experts are few and topK is 8 or less as a rule.
#include "kernels.h"
#include "simd.h"

namespace sy {
namespace SY_ISA {
namespace {

// softmax of n numbers in place; `padded` lanes up to a whole vector exist and hold -inf.
void softmax(float *x, i64 padded) {
  V best = load(x), sum = zero();
  for (i64 i = W; i < padded; i += W) best = maxOf(best, load(x + i));
  V top = splat(maxLanes(best));
  for (i64 i = 0; i < padded; i += W) {
    V e = vexp(load(x + i) - top);
    store(x + i, e);
    sum = sum + e;
  }
  V inv = splat(1.f / sumLanes(sum));
  for (i64 i = 0; i < padded; i += W) store(x + i, load(x + i) * inv);
}

// Index of the largest number, the first of equals; NaN marks what is already chosen. -1 when nothing is left.
i64 largest(const float *x, i64 n) {
  i64 at = -1;
  for (i64 i = 0; i < n; i++)
    if (at < 0 ? x[i] == x[i] : x[i] > x[at]) at = i;
  return at;
}

void limitGroups(const RouterArgs &a, float *choice, float *groupScore) {
  i64 size = a.experts / a.groups;
  for (i64 g = 0; g < a.groups; g++) {
    float first = -__builtin_inff(), second = first;
    for (i64 i = g * size; i < (g + 1) * size; i++) {
      float c = choice[i];
      if (c > first) { second = first; first = c; }
      else if (c > second) second = c;
    }
    groupScore[g] = a.groupTop2 && size > 1 ? first + second : first;
  }
  // A group stays when fewer than topGroups groups come before it (higher score, or equal and lower index).
  for (i64 g = 0; g < a.groups; g++) {
    i64 before = 0;
    for (i64 o = 0; o < a.groups; o++) before += groupScore[o] > groupScore[g] || (groupScore[o] == groupScore[g] && o < g);
    if (before >= a.topGroups)
      for (i64 i = g * size; i < (g + 1) * size; i++) choice[i] = -__builtin_inff();
  }
}

} // namespace

int router(const RouterArgs &a, i64 rows) {
  i64 n = a.experts, padded = (n + W - 1) / W * W;
  float *score = a.scratch, *choice = score + padded, *groupScore = choice + padded;
  for (i64 r = 0; r < rows; r++) {
    memcpy(score, a.logits.row(r), n * sizeof(float));
    for (i64 i = n; i < padded; i++) score[i] = -__builtin_inff();
    if (a.scoring == SOFTMAX) softmax(score, padded);
    else if (a.scoring == SIGMOID)
      for (i64 i = 0; i < padded; i += W) store(score + i, sigmoid(load(score + i)));
    for (i64 i = 0; i < n; i++) choice[i] = a.bias ? score[i] + a.bias[i] : score[i];
    if (a.groups > 1 && a.topGroups < a.groups) limitGroups(a, choice, groupScore);

    i32 *ids = a.ids + r * a.idsStride;
    float *weights = a.weights.row(r);
    for (i64 k = 0; k < a.topK; k++) {
      i64 best = largest(choice, n);
      if (best < 0) best = k < n ? k : 0; // logits that are not numbers: any valid id will do
      ids[k] = (i32)best;
      weights[k] = score[best];
      choice[best] = __builtin_nanf("");
    }
    if (a.scoring == SOFTMAX_AFTER_TOPK) {
      float top = weights[0], sum = 0;
      for (i64 k = 1; k < a.topK; k++)
        if (weights[k] > top) top = weights[k];
      for (i64 k = 0; k < a.topK; k++) {
        weights[k] = vexp(splat(weights[k] - top))[0];
        sum += weights[k];
      }
      for (i64 k = 0; k < a.topK; k++) weights[k] /= sum;
    }
    if (a.normalize) {
      float sum = 0;
      for (i64 k = 0; k < a.topK; k++) sum += weights[k];
      if (a.scoring == SIGMOID) sum += 1e-20f;
      for (i64 k = 0; k < a.topK; k++) weights[k] /= sum;
    }
    if (a.scale != 1.f)
      for (i64 k = 0; k < a.topK; k++) weights[k] *= a.scale;
  }
  return OK;
}

} // namespace SY_ISA
} // namespace sy
