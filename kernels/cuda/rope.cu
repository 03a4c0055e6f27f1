// Rotary embedding of heads.
//
// Shapes: x and out [rows, heads pieces of width, headStride apart], f32 or bf16; positions i32 [rows]; cosSin f32
// [positions, width], cosines then sines. Pairs (i, i + width/2), or (2i, 2i + 1) when interleaved; written de-interleaved.
// Algorithm: a warp a head. All pairs of a head are read before any is written, so out may be x.
// Versions and times (H200, bf16, 32 heads of 128; 1, 128, 16384 rows; memory alone 65 us for the last): warp a head: 2.3, 3.2, 214 us.
// Most ropes are part of fused_qk.cu.
#include "elements.cuh"

namespace {

using namespace el;

// A head of up to 512 elements.
constexpr int PAIRS = 8;

template <class X, class O>
DEVICE void rope(O *out, const X *x, const int *positions, const float *cosSin, int *faults, int rows,
                                     int heads, int width, int interleaved, int tablePositions, long long outStride,
                                     long long outHeadStride, long long xStride, long long xHeadStride,
                                     long long positionStride) {
  const long long piece = (long long)blockIdx.x * (blockDim.x >> 5) + (threadIdx.x >> 5);
  if (piece >= (long long)rows * heads) return;
  const long long row = piece / heads, head = piece % heads;
  const int lane = threadIdx.x & 31, half = width / 2;
  int position = positions[row * positionStride];
  if (position < 0 || position >= tablePositions) {
    if (lane == 0) fault(faults, FAULT_POSITION, position);
    return;
  }
  x += row * xStride + head * xHeadStride;
  out += row * outStride + head * outHeadStride;
  cosSin += (long long)position * width;
  float u[PAIRS], v[PAIRS];
#pragma unroll
  for (int i = 0; i < PAIRS; i++) {
    const int c = i * 32 + lane;
    if (c < half) {
      u[i] = one(x + (interleaved ? 2 * c : c));
      v[i] = one(x + (interleaved ? 2 * c + 1 : half + c));
    }
  }
  __syncwarp();
#pragma unroll
  for (int i = 0; i < PAIRS; i++) {
    const int c = i * 32 + lane;
    if (c < half) {
      const float cosine = cosSin[c], sine = cosSin[half + c];
      put(out + c, u[i] * cosine - v[i] * sine);
      put(out + half + c, v[i] * cosine + u[i] * sine);
    }
  }
}

} // namespace

#define ROPE(NAME, X, O)                                                                                               \
  extern "C" __global__ void rope_##NAME(O *out, const X *x, const int *positions, const float *cosSin, int *faults,   \
                                         int rows, int heads, int width, int interleaved, int tablePositions,          \
                                         long long outStride, long long outHeadStride, long long xStride,              \
                                         long long xHeadStride, long long positionStride) {                            \
    rope<X, O>(out, x, positions, cosSin, faults, rows, heads, width, interleaved, tablePositions, outStride,          \
               outHeadStride, xStride, xHeadStride, positionStride);                                                   \
  }
ROPE(f32_f32, float, float)
ROPE(bf16_bf16, bf16, bf16)
