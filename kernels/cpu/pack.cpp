// Packing of checkpoint tensors into panels: done once per start.
//
// Shapes: output row r of the matrix goes to panel r / 16, lane r % 16; f32 [k][16], bf16 [ceil(k/2)][16][2].
// Conversions are exact except to bf16, which rounds to nearest even. F8 E4M3 ("fn": no infinities, 0x7f is NaN) is
// multiplied by its block's scale in f32 first. Padding lanes are left alone (fresh spans are zero).
// Algorithm: element by element, in stretches of 64 inputs of a row so that sources are read in cache lines. Speed on
// one core of a Xeon, 10^9 elements a second: F32 and BF16 0.5 to 1, F16 0.4. F8 with scales was 0.1 with divisions for
// every element's row, column and block; see docs/performance-kernels.md for now.
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

// The 256 values of E4M3, computed by the compiler.
struct E4m3 {
  float value[256];
  constexpr E4m3() : value() {
    for (int b = 0; b < 256; b++) {
      int exponent = b >> 3 & 15, fraction = b & 7;
      float f = exponent ? 1.f + (float)fraction / 8 : (float)fraction / 8;
      for (int e = exponent ? exponent : 1; e < 7; e++) f /= 2;
      for (int e = 7; e < exponent; e++) f *= 2;
      value[b] = (b & 0x7f) == 0x7f ? __builtin_nanf("") : b & 0x80 ? -f : f;
    }
  }
};
constexpr E4m3 E4M3;

SY_INLINE u16 toBf16(float f) {
  u32 b = toBits(f);
  if ((b & 0x7fffffff) > 0x7f800000) return (u16)(b >> 16 | 0x40); // keep NaN quiet
  return (u16)((b + 0x7fff + (b >> 16 & 1)) >> 16);
}

// x / d for x >= 0: a shift when d is a power of two, as blocks of scales are.
struct Divisor {
  i64 d;
  int shift;
  explicit Divisor(i64 by) : d(by), shift(-1) {
    if (by > 0 && (by & (by - 1)) == 0) shift = __builtin_ctzll((u64)by);
  }
  i64 of(i64 x) const { return shift >= 0 ? x >> shift : x / d; }
};

// Walks the source from one element to the next `step` elements on, and knows its row and column when there are scales.
template <int DTYPE> struct Walk {
  const PackSource &s;
  Divisor blockRows, blockCols;
  i64 step, rows, columns; // step, and the same in whole rows and rest columns
  i64 at, r, c;

  Walk(const PackSource &source, i64 stepBy)
      : s(source), blockRows(source.blockRows), blockCols(source.blockCols), step(stepBy), rows(0), columns(0), at(0), r(0), c(0) {
    if (DTYPE == SRC_F8_E4M3 && s.scales) {
      rows = step / s.sourceColumns;
      columns = step % s.sourceColumns;
    }
  }
  void start(i64 element) {
    at = element;
    if (DTYPE == SRC_F8_E4M3 && s.scales) {
      r = at / s.sourceColumns;
      c = at % s.sourceColumns;
    }
  }
  inline __attribute__((always_inline)) u16 bits16() const {
    u16 h;
    memcpy(&h, s.bytes + at * 2, 2);
    return h;
  }
  inline __attribute__((always_inline)) float value() const {
    if (DTYPE == SRC_F32) {
      float f;
      memcpy(&f, s.bytes + at * 4, 4);
      return f;
    }
    if (DTYPE == SRC_F16) return halfToFloat(bits16());
    if (DTYPE == SRC_BF16) return fromBits((u32)bits16() << 16);
    float f = E4M3.value[s.bytes[at]];
    return s.scales ? f * s.scales[blockRows.of(r) * s.scaleColumns + blockCols.of(c)] : f;
  }
  inline __attribute__((always_inline)) void next() {
    at += step;
    if (DTYPE == SRC_F8_E4M3) {
      r += rows;
      c += columns;
      if (c >= s.sourceColumns) c -= s.sourceColumns, r++;
    }
  }
};

// One lane-run of a panel: `lanes` rows from `lane` on, all k. Rows outermost in short stretches of k, so that sources
// that are contiguous in k are read in cache lines.
template <int DTYPE, int KIND> void packLanes(char *panel, i64 lane, i64 lanes, i64 k, const PackSource &s, i64 first) {
  enum { STRETCH = 64 };
  Walk<DTYPE> w(s, s.strideK);
  for (i64 k0 = 0; k0 < k; k0 += STRETCH) {
    i64 k1 = k0 + STRETCH < k ? k0 + STRETCH : k;
    for (i64 l = 0; l < lanes; l++) {
      w.start(first + l * s.strideN + k0 * s.strideK);
      if (KIND == F32) {
        float *out = (float *)panel + lane + l;
        for (i64 i = k0; i < k1; i++, w.next()) out[i * 16] = w.value();
      } else {
        u16 *out = (u16 *)panel + (lane + l) * 2;
        for (i64 i = k0; i < k1; i++, w.next())
          out[i / 2 * 32 + (i & 1)] = DTYPE == SRC_BF16 ? w.bits16() : toBf16(w.value());
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
  Walk<DTYPE> w(a.source, a.source.strideN);
  w.start(a.source.offset);
  for (i64 i = 0; i < a.length; i++, w.next()) a.target[i] = w.value();
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
