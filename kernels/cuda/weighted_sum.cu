// The weighted sum of the experts' rows of each token.
//
// Shapes: out [rows, width], y [places, width], f32 or bf16 alike; weights f32 [rows, topK]; places i32 [rows * topK] or null (a
// row of y a (token, slot)); ids i32 [rows, topK] or null.
// Algorithm: a thread V columns of a row, slots in ascending order, f32 inside: no atomics, the same bits in every run.
// Versions and times: one vector a thread, not timed alone. Sorted experts have expert_combine (expert_rows.cu) instead.
#include "elements.cuh"

namespace {

using namespace el;

// out[r] = sum over slots s ascending of weights[r, s] * y[places ? places[r * topK + s] : r * topK + s], f32 inside.
// A slot with ids[r, s] < 0 (ids given) or place -1 adds nothing. grid (pieces of a row, min(rows, 65535)).
template <class Y, class O, int V>
DEVICE void weightedSum(O *out, const Y *y, const int *places, const int *ids, const float *weights, int rows, int topK,
                        int width, long long outStride, long long yStride, long long idStride, long long weightStride) {
  const int c = (blockIdx.x * blockDim.x + threadIdx.x) * V;
  if (c >= width) return;
  for (long long r = blockIdx.y; r < rows; r += gridDim.y) {
    float sum[V] = {};
    for (int s = 0; s < topK; s++) {
      const long long entry = r * topK + s;
      if (ids && ids[r * idStride + s] < 0) continue;
      const long long place = places ? places[entry] : entry;
      if (place < 0) continue;
      const float weight = weights[r * weightStride + s];
      float v[V];
      load<V>(y + place * yStride + c, v);
#pragma unroll
      for (int j = 0; j < V; j++) sum[j] += weight * v[j];
    }
    store<V>(out + r * outStride + c, sum);
  }
}

} // namespace

#define SUMS(NAME, T, V)                                                                                               \
  extern "C" __global__ void weighted_sum_##NAME##_##V(                                                                \
      T *out, const T *y, const int *places, const int *ids, const float *weights, int rows, int topK, int width,      \
      long long outStride, long long yStride, long long idStride, long long weightStride) {                            \
    weightedSum<T, T, V>(out, y, places, ids, weights, rows, topK, width, outStride, yStride, idStride,                \
                         weightStride);                                                                                \
  }
SUMS(f32, float, 1)
SUMS(f32, float, 8)
SUMS(bf16, bf16, 1)
SUMS(bf16, bf16, 8)
