// Choice of experts: scores, optional correction bias, optional group limit, top-k, weights.
//
// Shapes: logits f32 [rows, experts], experts <= 512; bias f32 [experts] or null; ids i32 and weights f32 [rows, topK],
// topK <= 32, best first, ties to the lower id. Rules: RouterSpec in src/device/ops.ts.
// Rows from *validRows on (padding of a captured graph) get ids -1 and weights 0. With fakeSalt >= 0 the ids are drawn:
// the topK largest hashes of (salt, position, row, expert), so distinct and uniform, and weigh alike.
// Algorithm: a warp a row, expert lane + 32 * j in register j. Numbers are compared as unsigned words in the same order, so
// that a maximum over the warp is one redux instruction; each of topK passes takes two.
// Versions and times (H200, 8 of 128): redux: 2.3 us for 1 row, 2.4 for 128, 14.6 for 16384.
#include "elements.cuh"

namespace {

using namespace el;

enum Scoring { SOFTMAX = 0, SIGMOID = 1, SOFTMAX_AFTER_TOPK = 2 };

// Unsigned words in the order of the numbers; NaN comes last of all but what is taken (0).
DEVICE unsigned orderOf(float x) {
  if (x != x) return 1u;
  const unsigned b = __float_as_uint(x + 0.f); // -0 becomes 0
  return b & 0x80000000u ? ~b : b | 0x80000000u;
}
DEVICE float numberOf(unsigned key) { return __uint_as_float(key & 0x80000000u ? key & 0x7fffffffu : ~key); }

// The largest key of the warp and the lowest expert that has it; keys of 0 are no candidates.
template <int PER> DEVICE unsigned largest(const unsigned (&key)[PER], int lane, int &expert) {
  unsigned best = 0;
  int id = 0x7fffffff;
#pragma unroll
  for (int j = 0; j < PER; j++)
    if (key[j] > best) best = key[j], id = lane + 32 * j;
  const unsigned top = __reduce_max_sync(0xffffffffu, best);
  expert = (int)__reduce_min_sync(0xffffffffu, best == top ? (unsigned)id : 0x7fffffffu);
  return top;
}

template <int PER> DEVICE void limitGroups(unsigned (&key)[PER], int lane, int experts, int groups, int topGroups,
                                           int top2) {
  const int size = experts / groups;
  // Lane g keeps the score of group g; groups <= 32.
  float score = NEG_INF;
  for (int g = 0; g < groups; g++) {
    unsigned member[PER];
#pragma unroll
    for (int j = 0; j < PER; j++) {
      const int e = lane + 32 * j;
      member[j] = e / size == g ? key[j] : 0u;
    }
    int first, second;
    float s = numberOf(largest(member, lane, first));
    if (top2 && size > 1) {
#pragma unroll
      for (int j = 0; j < PER; j++)
        if (lane + 32 * j == first) member[j] = 0u;
      s += numberOf(largest(member, lane, second));
    }
    if (lane == g) score = s;
  }
  // A group stays when fewer than topGroups come before it: a higher score, or an equal one and a lower index.
  int before = 0;
  for (int g = 0; g < groups; g++) {
    const float other = __shfl_sync(0xffffffffu, score, g);
    before += other > score || (other == score && g < lane);
  }
  const unsigned kept = __ballot_sync(0xffffffffu, lane < groups && before < topGroups);
#pragma unroll
  for (int j = 0; j < PER; j++) {
    const int e = lane + 32 * j;
    if (e < experts && !(kept >> (e / size) & 1)) key[j] = 2u; // after all numbers, still distinct choices
  }
}

template <int PER>
DEVICE void route(int *ids, float *weights, const float *logits, const float *bias, const int *validRows,
                  const int *positions, int rows, int experts, int topK, int scoring, int groups, int topGroups, int top2,
                  int normalize, float scale, int fakeSalt, long long idStride, long long weightStride,
                  long long logitStride, long long positionStride) {
  const int row = blockIdx.x * (blockDim.x >> 5) + (threadIdx.x >> 5), lane = threadIdx.x & 31;
  allow_dependents();
  wait_for_predecessors();
  if (row >= rows) return;
  ids += row * idStride;
  weights += row * weightStride;
  logits += row * logitStride;
  if (validRows && row >= *validRows) {
    if (lane < topK) ids[lane] = -1, weights[lane] = 0.f;
    return;
  }
  float score[PER];
#pragma unroll
  for (int j = 0; j < PER; j++) {
    const int e = lane + 32 * j;
    score[j] = e < experts ? logits[e] : NEG_INF;
  }
  if (scoring == SOFTMAX) {
    float top = NEG_INF, sum = 0.f;
#pragma unroll
    for (int j = 0; j < PER; j++) top = fmaxf(top, score[j]);
    top = warp_max(top);
#pragma unroll
    for (int j = 0; j < PER; j++) {
      score[j] = expf(score[j] - top);
      sum += score[j];
    }
    sum = warp_sum(sum);
#pragma unroll
    for (int j = 0; j < PER; j++) score[j] /= sum;
  } else if (scoring == SIGMOID) {
#pragma unroll
    for (int j = 0; j < PER; j++) score[j] = sigmoid(score[j]);
  }
  unsigned key[PER];
  if (fakeSalt >= 0) {
    const unsigned token = tokenHash(row, positions[row * positionStride]);
#pragma unroll
    for (int j = 0; j < PER; j++) {
      const int e = lane + 32 * j;
      key[j] = e < experts ? expertHash(token, fakeSalt, e) | 1u : 0u;
    }
  } else {
#pragma unroll
    for (int j = 0; j < PER; j++) {
      const int e = lane + 32 * j;
      key[j] = e < experts ? orderOf(bias ? score[j] + bias[e] : score[j]) : 0u;
    }
    if (groups > 1 && topGroups < groups) limitGroups(key, lane, experts, groups, topGroups, top2);
  }
  // Slot s of the row is kept by lane s.
  int chosen = 0;
  float weight = 0.f;
  for (int s = 0; s < topK; s++) {
    int e;
    largest(key, lane, e);
    float mine = 0.f;
#pragma unroll
    for (int j = 0; j < PER; j++)
      if (lane + 32 * j == e) {
        key[j] = 0u;
        mine = score[j];
      }
    mine = __shfl_sync(0xffffffffu, mine, e & 31);
    if (lane == s) chosen = e, weight = mine;
  }
  const bool slot = lane < topK;
  if (scoring == SOFTMAX_AFTER_TOPK) {
    const float top = warp_max(slot ? weight : NEG_INF);
    weight = slot ? expf(weight - top) : 0.f;
    weight /= warp_sum(weight);
  }
  if (normalize) weight /= warp_sum(slot ? weight : 0.f) + (scoring == SIGMOID ? 1e-20f : 0.f);
  // Drawn experts weigh alike: what a router thinks of them means nothing.
  if (fakeSalt >= 0) weight = 1.f / (float)topK;
  if (slot) ids[lane] = chosen, weights[lane] = weight * scale;
}

} // namespace

#define ROUTER(PER)                                                                                                    \
  extern "C" __global__ void router_##PER(                                                                             \
      int *ids, float *weights, const float *logits, const float *bias, const int *validRows, const int *positions,    \
      int rows, int experts, int topK, int scoring, int groups, int topGroups, int top2, int normalize, float scale,   \
      int fakeSalt, long long idStride, long long weightStride, long long logitStride, long long positionStride) {     \
    route<PER>(ids, weights, logits, bias, validRows, positions, rows, experts, topK, scoring, groups, topGroups,      \
               top2, normalize, scale, fakeSalt, idStride, weightStride, logitStride, positionStride);                 \
  }
ROUTER(1)
ROUTER(2)
ROUTER(4)
ROUTER(8)
ROUTER(16)
