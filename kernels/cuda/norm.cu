// Root-mean-square norms: alone, and after adding to the residual.
//
// Shapes: x and out [rows, groups * width] with strides, f32 or bf16; weight f32 [width]; residual f32 [rows, width].
// Rules: out = x / sqrt(mean(x^2) + eps) * weight for each group; with a residual: residual += x, out = its norm.
// Algorithm: a block a row (or a warp a group, where a row has many of a head's width), one pass: each thread keeps its
// elements in registers between the sum and the product; what exceeds the registers is read again. 16-byte accesses where
// addresses allow (V = 8 or 4 elements). A thread's first weights are read before the kernel waits for the one before it. The shape of the sum depends on the width alone, so a row's bits do not depend on
// other rows. out may be x.
// Versions and times (H200, bf16, with residual, 2,048 wide; 1, 32, 128, 16384 rows; memory alone 98 us for the last): block a row, 16-byte
// accesses: 1.5, 1.7, 2.2, 106 us.
#include "elements.cuh"

namespace {

using namespace el;

// How many vectors of a row a thread keeps.
constexpr int KEPT = 4;

template <int V> struct Kept { float v[KEPT][V]; };

// Sum over the block, or over the warp; `parts` is used once in a kernel.
template <bool WARP> DEVICE float total(float x, float *parts) {
  x = warp_sum(x);
  const int warps = blockDim.x >> 5;
  if (WARP || warps == 1) return x;
  if ((threadIdx.x & 31) == 0) parts[threadIdx.x >> 5] = x;
  __syncthreads();
  float sum = 0.f;
  for (int w = 0; w < warps; w++) sum += parts[w];
  return sum;
}

// Weights of this thread's vector i; the first ones were asked for before.
template <int V> DEVICE void weigh(float (&v)[V], int i, const float (&first)[V], const float *weight, int c, float inverse) {
  float w[V];
  if (i > 0) load<V>(weight + c, w);
#pragma unroll
  for (int j = 0; j < V; j++) v[j] = (i > 0 ? w[j] : first[j]) * (v[j] * inverse);
}

// After the sum: what is kept, then the rest of `x` read again, times `inverse` and weights.
template <class X, class O, int V>
DEVICE void writeNorm(O *out, const X *x, Kept<V> &k, const float (&first)[V], const float *weight, int width, float inverse, int lane,
                      int lanes) {
#pragma unroll
  for (int i = 0; i < KEPT; i++) {
    int c = (i * lanes + lane) * V;
    if (c < width) {
      weigh<V>(k.v[i], i, first, weight, c, inverse);
      store<V>(out + c, k.v[i]);
    }
  }
  for (int c = (KEPT * lanes + lane) * V; c < width; c += lanes * V) {
    float v[V], w[V];
    load<V>(x + c, v);
    load<V>(weight + c, w);
#pragma unroll
    for (int j = 0; j < V; j++) w[j] *= v[j] * inverse;
    store<V>(out + c, w);
  }
}

// One group of one row by `lanes` threads, of which this is `lane`.
template <class X, class O, int V, bool WARP>
DEVICE void norm(O *out, const X *x, const float *weight, int width, float eps, int lane, int lanes,
                                     float *parts) {
  Kept<V> k;
  float first[V];
  if (lane * V < width) load<V>(weight + lane * V, first);
  wait_for_predecessors();
  float squares = 0.f;
#pragma unroll
  for (int i = 0; i < KEPT; i++) {
    int c = (i * lanes + lane) * V;
    if (c < width) {
      load<V>(x + c, k.v[i]);
#pragma unroll
      for (int j = 0; j < V; j++) squares += k.v[i][j] * k.v[i][j];
    }
  }
  for (int c = (KEPT * lanes + lane) * V; c < width; c += lanes * V) {
    float v[V];
    load<V>(x + c, v);
#pragma unroll
    for (int j = 0; j < V; j++) squares += v[j] * v[j];
  }
  const float inverse = rsqrtf(total<WARP>(squares, parts) / (float)width + eps);
  writeNorm<X, O, V>(out, x, k, first, weight, width, inverse, lane, lanes);
}

// grid: rows * groups; any whole number of warps a block
template <class X, class O, int V>
DEVICE void normBlock(O *out, const X *x, const float *weight, int width, int groups, float eps,
                                          long long outStride, long long xStride) {
  __shared__ float parts[32];
  allow_dependents();
  const int row = blockIdx.x / groups, group = blockIdx.x % groups;
  const long long at = (long long)group * width;
  norm<X, O, V, false>(out + row * outStride + at, x + row * xStride + at, weight, width, eps, threadIdx.x, blockDim.x,
                       parts);
}

// grid: ceil(rows * groups / warps a block)
template <class X, class O, int V>
DEVICE void normWarp(O *out, const X *x, const float *weight, int rows, int width, int groups,
                                         float eps, long long outStride, long long xStride) {
  allow_dependents();
  const long long piece = (long long)blockIdx.x * (blockDim.x >> 5) + (threadIdx.x >> 5);
  if (piece >= (long long)rows * groups) return;
  const long long row = piece / groups, at = (piece % groups) * width;
  norm<X, O, V, true>(out + row * outStride + at, x + row * xStride + at, weight, width, eps, threadIdx.x & 31, 32,
                      nullptr);
}

// grid: rows
template <class X, class O, int V>
DEVICE void addNorm(O *out, float *residual, const X *x, const float *weight, int width, float eps,
                                        long long outStride, long long residualStride, long long xStride) {
  __shared__ float parts[32];
  const long long row = blockIdx.x;
  out += row * outStride;
  residual += row * residualStride;
  x += row * xStride;
  const int lane = threadIdx.x, lanes = blockDim.x;
  Kept<V> k;
  float first[V];
  allow_dependents();
  if (lane * V < width) load<V>(weight + lane * V, first);
  wait_for_predecessors();
  float squares = 0.f;
#pragma unroll
  for (int i = 0; i < KEPT; i++) {
    int c = (i * lanes + lane) * V;
    if (c < width) {
      float v[V];
      load<V>(x + c, v);
      load<V>(residual + c, k.v[i]);
#pragma unroll
      for (int j = 0; j < V; j++) {
        k.v[i][j] += v[j];
        squares += k.v[i][j] * k.v[i][j];
      }
      store<V>(residual + c, k.v[i]);
    }
  }
  for (int c = (KEPT * lanes + lane) * V; c < width; c += lanes * V) {
    float v[V], s[V];
    load<V>(x + c, v);
    load<V>(residual + c, s);
#pragma unroll
    for (int j = 0; j < V; j++) {
      s[j] += v[j];
      squares += s[j] * s[j];
    }
    store<V>(residual + c, s);
  }
  const float inverse = rsqrtf(total<false>(squares, parts) / (float)width + eps);
  writeNorm<float, O, V>(out, residual, k, first, weight, width, inverse, lane, lanes);
}

} // namespace

#define NORMS(NAME, X, O, V)                                                                                           \
  extern "C" __global__ void rms_norm_block_##NAME(O *out, const X *x, const float *weight, int rows, int width,       \
                                                   int groups, float eps, long long outStride, long long xStride) {    \
    normBlock<X, O, V>(out, x, weight, width, groups, eps, outStride, xStride);                                        \
  }                                                                                                                    \
  extern "C" __global__ void rms_norm_warp_##NAME(O *out, const X *x, const float *weight, int rows, int width,        \
                                                  int groups, float eps, long long outStride, long long xStride) {     \
    normWarp<X, O, V>(out, x, weight, rows, width, groups, eps, outStride, xStride);                                   \
  }                                                                                                                    \
  extern "C" __global__ void add_rms_norm_##NAME(O *out, float *residual, const X *x, const float *weight, int rows,   \
                                                 int width, float eps, long long outStride, long long residualStride,  \
                                                 long long xStride) {                                                  \
    addNorm<X, O, V>(out, residual, x, weight, width, eps, outStride, residualStride, xStride);                        \
  }

#define WIDTHS(NAME, X, O)                                                                                             \
  NORMS(NAME##_1, X, O, 1)                                                                                             \
  NORMS(NAME##_4, X, O, 4)                                                                                             \
  NORMS(NAME##_8, X, O, 8)

WIDTHS(f32_f32, float, float)
WIDTHS(f32_bf16, float, bf16)
WIDTHS(bf16_f32, bf16, float)
WIDTHS(bf16_bf16, bf16, bf16)
