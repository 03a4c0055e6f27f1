// Rows between what callers have (f32 or bf16, any alignment) and wire rows (f32, bf16, or fp8 with scales behind the elements).
//
// A warp a row; `rows` rows. Strides: of plain rows in elements, of wire rows in bytes. Rules of rounding: src/comm/wire/codec.ts.
// Not on the fast path: dispatch quantises rows itself, and experts read wire rows as they are.
// Versions and times: simple loops, not measured.
#include "ep.cuh"

using namespace ep;

namespace {

template <class In, class Wire> DEVICE void encode(const In *from, i64 from_stride, char *to, i64 to_stride, int rows, int hidden) {
  for (int r = blockIdx.x * (blockDim.x >> 5) + warp_id(); r < rows; r += gridDim.x * (blockDim.x >> 5)) {
    Wire *row = reinterpret_cast<Wire *>(to + r * to_stride);
    for (int i = lane_id(); i < hidden; i += 32) stF(row + i, ldF(from + r * from_stride + i));
  }
}

template <class In> DEVICE void encode_fp8(const In *from, i64 from_stride, char *to, i64 to_stride, int rows, int hidden, bool round_scales) {
  const int lane = lane_id();
  for (int r = blockIdx.x * (blockDim.x >> 5) + warp_id(); r < rows; r += gridDim.x * (blockDim.x >> 5)) {
    const In *row = from + r * from_stride;
    char *wire = to + r * to_stride;
    float *scales = reinterpret_cast<float *>(wire + (hidden + 3) / 4 * 4);
    const int pieces = (hidden + 15) / 16;
    for (int begin = 0; begin < pieces; begin += 32) {
      const int c = begin + lane;
      float x[16], scale;
      for (int i = 0; i < 16; i++) x[i] = 16 * c + i < hidden ? ldF(row + 16 * c + i) : 0.0f;
      const uint4 v = quantise16(x, round_scales, scale);
      const u32 w[4] = {v.x, v.y, v.z, v.w};
      for (int i = 0; i < 16; i++)
        if (16 * c + i < hidden) wire[16 * c + i] = (char)(w[i / 4] >> (8 * (i % 4)) & 0xff);
      if ((lane & 7) == 0 && c < pieces) scales[c >> 3] = scale;
    }
  }
}

template <class Wire> DEVICE void decode(const char *from, i64 from_stride, float *to, i64 to_stride, int rows, int hidden) {
  for (int r = blockIdx.x * (blockDim.x >> 5) + warp_id(); r < rows; r += gridDim.x * (blockDim.x >> 5)) {
    const Wire *row = reinterpret_cast<const Wire *>(from + r * from_stride);
    for (int i = lane_id(); i < hidden; i += 32) to[r * to_stride + i] = ldF(row + i);
  }
}

} // namespace

#define ENCODE(NAME, IN, WIRE)                                                                                                  \
  extern "C" __global__ void __launch_bounds__(256)                                                                             \
  NAME(const IN *from, i64 from_stride, char *to, i64 to_stride, int rows, int hidden, int) {                                   \
    encode<IN, WIRE>(from, from_stride, to, to_stride, rows, hidden);                                                           \
  }
ENCODE(ep_encode_f32_f32, float, float)
ENCODE(ep_encode_f32_bf16, float, bf16)
ENCODE(ep_encode_bf16_f32, bf16, float)
ENCODE(ep_encode_bf16_bf16, bf16, bf16)

#define ENCODE_FP8(NAME, IN)                                                                                                    \
  extern "C" __global__ void __launch_bounds__(256)                                                                             \
  NAME(const IN *from, i64 from_stride, char *to, i64 to_stride, int rows, int hidden, int round_scales) {                      \
    encode_fp8(from, from_stride, to, to_stride, rows, hidden, round_scales != 0);                                              \
  }
ENCODE_FP8(ep_encode_f32_fp8, float)
ENCODE_FP8(ep_encode_bf16_fp8, bf16)

#define DECODE(NAME, WIRE)                                                                                                      \
  extern "C" __global__ void __launch_bounds__(256) NAME(const char *from, i64 from_stride, float *to, i64 to_stride, int rows, int hidden) { \
    decode<WIRE>(from, from_stride, to, to_stride, rows, hidden);                                                               \
  }
DECODE(ep_decode_f32, float)
DECODE(ep_decode_bf16, bf16)

extern "C" __global__ void __launch_bounds__(256) ep_decode_fp8(const char *from, i64 from_stride, float *to, i64 to_stride, int rows, int hidden) {
  for (int r = blockIdx.x * (blockDim.x >> 5) + warp_id(); r < rows; r += gridDim.x * (blockDim.x >> 5)) {
    const u8 *row = reinterpret_cast<const u8 *>(from + r * from_stride);
    const float *scales = reinterpret_cast<const float *>(row + (hidden + 3) / 4 * 4);
    for (int i = lane_id(); i < hidden; i += 32) to[r * to_stride + i] = unpack_e4m3(row[i]) * scales[i >> 7];
  }
}
