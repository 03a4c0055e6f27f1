// Packing of checkpoint tensors into panels: done once per start.
//
// Shapes: output row r of the matrix goes to panel r / 16, lane r % 16; f32 [k][16], bf16 [ceil(k/2)][16][2].
// Conversions are exact except to bf16, which rounds to nearest even. F8 E4M3 ("fn": no infinities, 0x7f is NaN) is
// multiplied by its block's scale in f32 first. Padding lanes are left alone (fresh spans are zero).
#include "kernels.h"
#include "simd.h"

namespace sy {
namespace SY_ISA {
namespace {

SY_INLINE float fromBits(u32 b) {
  float f;
  memcpy(&f, &b, 4);
  return f;
}
SY_INLINE u32 toBits(float f) {
  u32 b;
  memcpy(&b, &f, 4);
  return b;
}

SY_INLINE float halfToFloat(u16 h) {
  u32 sign = (u32)(h & 0x8000) << 16, exponent = h >> 10 & 31, fraction = h & 1023;
  if (exponent == 31) return fromBits(sign | 0x7f800000 | fraction << 13);
  if (exponent) return fromBits(sign | (exponent + 112) << 23 | fraction << 13);
  float f = (float)fraction * 5.9604644775390625e-8f; // 2^-24
  return sign ? -f : f;
}

SY_INLINE float e4m3ToFloat(u8 b) {
  u32 sign = (u32)(b & 0x80) << 24, exponent = b >> 3 & 15, fraction = b & 7;
  if ((b & 0x7f) == 0x7f) return fromBits(sign | 0x7fc00000);
  if (exponent) return fromBits(sign | (exponent + 120) << 23 | fraction << 20);
  float f = (float)fraction * 0.001953125f; // 2^-9
  return sign ? -f : f;
}

SY_INLINE u16 toBf16(float f) {
  u32 b = toBits(f);
  if ((b & 0x7fffffff) > 0x7f800000) return (u16)(b >> 16 | 0x40); // keep NaN quiet
  return (u16)((b + 0x7fff + (b >> 16 & 1)) >> 16);
}

template <int DTYPE> SY_INLINE float element(const PackSource &s, i64 at) {
  if (DTYPE == SRC_F32) {
    float f;
    memcpy(&f, s.bytes + at * 4, 4);
    return f;
  }
  if (DTYPE == SRC_F8_E4M3) {
    float f = e4m3ToFloat(s.bytes[at]);
    if (!s.scales) return f;
    i64 r = at / s.sourceColumns, c = at - r * s.sourceColumns;
    return f * s.scales[r / s.blockRows * s.scaleColumns + c / s.blockCols];
  }
  u16 h;
  memcpy(&h, s.bytes + at * 2, 2);
  return DTYPE == SRC_F16 ? halfToFloat(h) : fromBits((u32)h << 16);
}

// One lane-run of a panel: `lanes` rows from `lane` on, all k. Rows outermost in short stretches of k, so that sources
// that are contiguous in k are read in cache lines.
template <int DTYPE, int KIND> void packLanes(char *panel, i64 lane, i64 lanes, i64 k, const PackSource &s, i64 first) {
  enum { STRETCH = 64 };
  for (i64 k0 = 0; k0 < k; k0 += STRETCH) {
    i64 k1 = k0 + STRETCH < k ? k0 + STRETCH : k;
    for (i64 l = 0; l < lanes; l++) {
      i64 at = first + l * s.strideN + k0 * s.strideK;
      if (KIND == F32) {
        float *out = (float *)panel + lane + l;
        for (i64 i = k0; i < k1; i++, at += s.strideK) out[i * 16] = element<DTYPE>(s, at);
      } else {
        u16 *out = (u16 *)panel + (lane + l) * 2;
        for (i64 i = k0; i < k1; i++, at += s.strideK) {
          u16 v;
          if (DTYPE == SRC_BF16) memcpy(&v, s.bytes + at * 2, 2);
          else v = toBf16(element<DTYPE>(s, at));
          out[i / 2 * 32 + (i & 1)] = v;
        }
      }
    }
  }
}

template <int DTYPE> void packRows(const PackMatrixArgs &a) {
  for (i64 i = 0; i < a.n;) {
    i64 row = a.rowStart + i, lane = row % 16, lanes = 16 - lane < a.n - i ? 16 - lane : a.n - i;
    char *panel = a.target + row / 16 * a.panel;
    i64 first = a.source.offset + i * a.source.strideN;
    if (a.kind == F32) packLanes<DTYPE, F32>(panel, lane, lanes, a.k, a.source, first);
    else packLanes<DTYPE, BF16>(panel, lane, lanes, a.k, a.source, first);
    i += lanes;
  }
}

template <int DTYPE> void packVectorOf(const PackVectorArgs &a) {
  for (i64 i = 0; i < a.length; i++) a.target[i] = element<DTYPE>(a.source, a.source.offset + i * a.source.strideN);
}

} // namespace

void packMatrix(const PackMatrixArgs &a) {
  switch (a.source.dtype) {
    case SRC_F32: return packRows<SRC_F32>(a);
    case SRC_F16: return packRows<SRC_F16>(a);
    case SRC_BF16: return packRows<SRC_BF16>(a);
    default: return packRows<SRC_F8_E4M3>(a);
  }
}

void packVector(const PackVectorArgs &a) {
  switch (a.source.dtype) {
    case SRC_F32: return packVectorOf<SRC_F32>(a);
    case SRC_F16: return packVectorOf<SRC_F16>(a);
    case SRC_BF16: return packVectorOf<SRC_BF16>(a);
    default: return packVectorOf<SRC_F8_E4M3>(a);
  }
}

} // namespace SY_ISA
} // namespace sy
