// Rows between ranks: copying, encoding (bf16, fp8 e4m3 with block scales, int8), decoding, and the two sums of a combine.
// Invariant: every value is the one that src/comm/wire/reference.ts computes, bit for bit (weightedSum excepted, which
// rounds as Ops.experts does here); sums over members start from the first row and add in f32 in ascending order.
// Large copies bypass the caches: what is received is read much later, by another core.
#include "wire.h"
#include "simd.h"

namespace sy {
namespace SY_ISA {
namespace {

// Floats read as bits.
typedef u32 __attribute__((may_alias)) Bits;

SY_INLINE u32 bitsOf(float f) {
  u32 u;
  memcpy(&u, &f, 4);
  return u;
}
SY_INLINE float floatOf(u32 u) {
  float f;
  memcpy(&f, &u, 4);
  return f;
}

// Copies smaller than this in total stay in the caches.
enum { STREAM_FROM = 1 << 20 };

#if defined(__x86_64__)
void streamRow(char *to, const char *from, i64 bytes) {
  i64 i = 0;
#if defined(__AVX512F__)
  for (; i + 64 <= bytes; i += 64) _mm512_stream_si512((__m512i *)(to + i), _mm512_loadu_si512(from + i));
#else
  for (; i + 64 <= bytes; i += 64)
    for (int j = 0; j < 64; j += 16) _mm_stream_si128((__m128i *)(to + i + j), _mm_loadu_si128((const __m128i *)(from + i + j)));
#endif
  if (i < bytes) memcpy(to + i, from + i, (size_t)(bytes - i));
}
// What a ring takes lies in another core's cache as a rule: asks for its lines before they are written.
SY_INLINE void askToWrite(const char *p) { asm volatile("prefetchw %0" ::"m"(*p)); }
void keepRow(char *to, const char *from, i64 bytes) {
  enum { AHEAD = 512 };
  i64 i = 0;
#if defined(__AVX512F__)
  for (; i + 64 <= bytes; i += 64) {
    askToWrite(to + i + AHEAD);
    _mm512_storeu_si512((__m512i *)(to + i), _mm512_loadu_si512(from + i));
  }
#else
  for (; i + 64 <= bytes; i += 64) {
    askToWrite(to + i + AHEAD);
    for (int j = 0; j < 64; j += 16) _mm_storeu_si128((__m128i *)(to + i + j), _mm_loadu_si128((const __m128i *)(from + i + j)));
  }
#endif
  if (i < bytes) memcpy(to + i, from + i, (size_t)(bytes - i));
}
bool streams(const WireRows &r, i64 bytes) { return bytes >= STREAM_FROM && ((uintptr_t)r.p | (uintptr_t)r.stride) % 64 == 0; }
bool streams(const WireRows &r, i64 bytes, int caching) {
  if (caching == CACHE_KEEP) return false;
  return streams(r, caching == CACHE_BYPASS ? (i64)STREAM_FROM : bytes);
}
void finishStreams() { _mm_sfence(); }
#else
void streamRow(char *to, const char *from, i64 bytes) { memcpy(to, from, (size_t)bytes); }
void keepRow(char *to, const char *from, i64 bytes) { memcpy(to, from, (size_t)bytes); }
bool streams(const WireRows &, i64) { return false; }
bool streams(const WireRows &, i64, int) { return false; }
void finishStreams() {}
#endif

i64 rowBytes(const WireRows &r, i64 hidden) {
  if (r.dtype == WIRE_F32) return hidden * 4;
  if (r.dtype == WIRE_BF16) return hidden * 2;
  return r.scaleOffset + 4 * (r.dtype == WIRE_FP8 ? (hidden + QUANT_BLOCK - 1) / QUANT_BLOCK : 1);
}

// The largest magnitude as bits: NaN is above infinity is above all else, so a bad element shows.
SY_INLINE u32 largest(const float *x, i64 n) {
  const Bits *u = (const Bits *)x;
  u32 top = 0;
  for (i64 i = 0; i < n; i++) {
    u32 v = u[i] & 0x7fffffff;
    top = v > top ? v : top;
  }
  return top;
}

void encodeBf16(u16 *to, const float *x, i64 n) {
  const Bits *u = (const Bits *)x;
  for (i64 i = 0; i < n; i++) {
    u32 v = u[i], rounded = (v + 0x7fff + ((v >> 16) & 1)) >> 16, nan = (v >> 16) | 0x40;
    to[i] = (u16)((v & 0x7fffffff) > 0x7f800000 ? nan : rounded);
  }
}

// x * inverse to e4m3, nearest even. |x * inverse| is at most a rounding error above 448.
void encodeE4m3(u8 *to, const float *x, i64 n, float inverse) {
  for (i64 i = 0; i < n; i++) {
    u32 v = bitsOf(x[i] * inverse), a = v & 0x7fffffff;
    u32 normal = ((a + 0x7ffff + ((a >> 20) & 1)) >> 20) - (120 << 3);
    u32 small = bitsOf(floatOf(a) + 16384.f) - 0x46800000; // steps of 2^-9
    u32 code = a < 0x3c800000 ? small : normal;
    code = code > 0x7e ? 0x7e : code;
    to[i] = (u8)(code | (v >> 24 & 0x80));
  }
}

void encodeFp8(char *row, const float *x, i64 n, const WireRows &w) {
  float *scales = (float *)(row + w.scaleOffset);
  for (i64 b = 0; b * QUANT_BLOCK < n; b++) {
    i64 from = b * QUANT_BLOCK, count = n - from < QUANT_BLOCK ? n - from : (i64)QUANT_BLOCK;
    u32 top = largest(x + from, count);
    if (top >= 0x7f800000) { // not finite: the whole block decodes to NaN
      scales[b] = floatOf(0x7fc00000);
      memset(row + from, 0, (size_t)count);
      continue;
    }
    float amax = floatOf(top);
    if (!(amax >= 1e-4f)) amax = 1e-4f;
    float scale = amax / 448.f, inverse = 448.f / amax;
    if (w.roundScales) {
      u32 s = bitsOf(scale);
      u32 exponent = (s >> 23) + ((s & 0x7fffff) != 0);
      scale = floatOf(exponent << 23);
      inverse = floatOf((254 - exponent) << 23);
    }
    scales[b] = scale;
    encodeE4m3((u8 *)row + from, x + from, count, inverse);
  }
}

void encodeInt8(char *row, const float *x, i64 n, const WireRows &w) {
  u32 top = largest(x, n);
  float &scale = *(float *)(row + w.scaleOffset);
  if (top >= 0x7f800000) {
    scale = floatOf(0x7fc00000);
    memset(row, 0, (size_t)n);
    return;
  }
  float amax = floatOf(top);
  if (!(amax >= 1e-30f)) amax = 1e-30f;
  scale = amax / 127.f;
  float inverse = 127.f / amax;
  signed char *q = (signed char *)row;
  for (i64 i = 0; i < n; i++) q[i] = (signed char)(i32)((x[i] * inverse + 12582912.f) - 12582912.f);
}

void encode(char *row, const float *x, i64 n, const WireRows &w) {
  if (w.dtype == WIRE_F32) memcpy(row, x, (size_t)(n * 4));
  else if (w.dtype == WIRE_BF16) encodeBf16((u16 *)row, x, n);
  else if (w.dtype == WIRE_FP8) encodeFp8(row, x, n, w);
  else encodeInt8(row, x, n, w);
}

void decodeE4m3(float *to, const u8 *q, i64 n, float scale) {
  for (i64 i = 0; i < n; i++) {
    u32 c = q[i], a = c & 0x7f;
    float normal = floatOf((a << 20) + (120u << 23)), small = (float)(i32)a * 0x1p-9f;
    float v = a < 8 ? small : normal;
    to[i] = floatOf(bitsOf(v) | (c & 0x80) << 24) * scale;
  }
}

void decode(float *to, const char *row, i64 n, const WireRows &w) {
  if (w.dtype == WIRE_F32) memcpy(to, row, (size_t)(n * 4));
  else if (w.dtype == WIRE_BF16) {
    const u16 *h = (const u16 *)row;
    for (i64 i = 0; i < n; i++) to[i] = floatOf((u32)h[i] << 16);
  } else if (w.dtype == WIRE_FP8) {
    const float *scales = (const float *)(row + w.scaleOffset);
    for (i64 b = 0; b * QUANT_BLOCK < n; b++) {
      i64 from = b * QUANT_BLOCK;
      decodeE4m3(to + from, (const u8 *)row + from, n - from < QUANT_BLOCK ? n - from : (i64)QUANT_BLOCK, scales[b]);
    }
  } else {
    const signed char *q = (const signed char *)row;
    float scale = *(const float *)(row + w.scaleOffset);
    for (i64 i = 0; i < n; i++) to[i] = (float)q[i] * scale;
  }
}

// The row as f32: itself, or decoded into `scratch`.
const float *asFloats(const WireRows &w, i64 row, i64 hidden, float *scratch) {
  if (w.dtype == WIRE_F32) return (const float *)w.row(row);
  decode(scratch, w.row(row), hidden, w);
  return scratch;
}

int transfer(const TransferArgs &a) {
  bool same = a.from.dtype == a.to.dtype;
  i64 bytes = rowBytes(a.to, a.hidden);
  bool stream = same && streams(a.to, bytes * a.n, a.caching);
  for (i64 i = 0; i < a.n; i++) {
    i64 f = a.fromIndex ? a.fromIndex[i] : a.fromRow + i, t = a.toIndex ? a.toIndex[i] : a.toRow + i;
    if (f < 0 || f >= a.from.capacity || t < 0 || t >= a.to.capacity) return INDEX_OUT_OF_RANGE;
    const char *from = a.from.row(f);
    char *to = a.to.row(t);
    if (stream) streamRow(to, from, bytes);
    else if (same && a.caching == CACHE_KEEP) keepRow(to, from, bytes);
    else if (same) memcpy(to, from, (size_t)bytes);
    else if (a.from.dtype == WIRE_F32) encode(to, (const float *)from, a.hidden, a.to);
    else decode((float *)to, from, a.hidden, a.from);
  }
  if (stream) finishStreams();
  return OK;
}

int scatter(const ScatterArgs &a) {
  i64 bytes = rowBytes(a.from, a.hidden);
  bool stream = true;
  for (i64 m = 0; m < a.members; m++) stream = stream && streams(a.to[m], bytes * a.n);
  for (i64 i = 0; i < a.n; i++) {
    i64 f = a.fromRow + i;
    if (f < 0 || f >= a.from.capacity) return INDEX_OUT_OF_RANGE;
    const char *from = a.from.row(f);
    for (i64 m = 0; m < a.members; m++) {
      i64 t = a.table[i * a.members + m];
      if (t < 0) continue;
      if (t >= a.to[m].capacity) return INDEX_OUT_OF_RANGE;
      if (stream) streamRow(a.to[m].row(t), from, bytes);
      else memcpy(a.to[m].row(t), from, (size_t)bytes);
    }
  }
  if (stream) finishStreams();
  return OK;
}

// Rows of f32 are added in one pass over all of them: each is read once, the sum is written once.
template <int N> void addRows(float *out, const float *const *rows, i64 hidden) {
  eachVector(hidden, [&](i64 c, i64 n) {
    V s = loadN(rows[0] + c, n);
#pragma GCC unroll 8
    for (int i = 1; i < N; i++) s = s + loadN(rows[i] + c, n);
    storeN(out + c, s, n);
  });
}

// From the second group on, `out` holds the sum so far.
void addMany(float *out, const float **rows, i64 count, i64 hidden) {
  for (bool first = true; count > 0; first = false) {
    const float *group[8];
    i64 n = 0;
    if (!first) group[n++] = out;
    while (n < 8 && count > 0) group[n++] = *rows++, count--;
    switch (n) {
      case 1: addRows<1>(out, group, hidden); break;
      case 2: addRows<2>(out, group, hidden); break;
      case 3: addRows<3>(out, group, hidden); break;
      case 4: addRows<4>(out, group, hidden); break;
      case 5: addRows<5>(out, group, hidden); break;
      case 6: addRows<6>(out, group, hidden); break;
      case 7: addRows<7>(out, group, hidden); break;
      default: addRows<8>(out, group, hidden);
    }
  }
}

int sum(const WireSumArgs &a, float *scratch) {
  const float **rows = (const float **)scratch; // [members], then a decoded row
  float *decoded = scratch + 2 * a.members;
  for (i64 i = 0; i < a.n; i++) {
    i64 o = a.outRow + i, count = 0;
    if (o < 0 || o >= a.out.capacity) return INDEX_OUT_OF_RANGE;
    float *out = (float *)a.out.row(o);
    for (i64 m = 0; m < a.members; m++) {
      i64 r = a.table[i * a.members + m];
      if (r < 0) continue;
      if (r >= a.from[m].capacity) return INDEX_OUT_OF_RANGE;
      if (a.from[m].dtype == WIRE_F32) rows[count++] = (const float *)a.from[m].row(r);
      else if (count++ == 0) decode(out, a.from[m].row(r), a.hidden, a.from[m]);
      else {
        decode(decoded, a.from[m].row(r), a.hidden, a.from[m]);
        const float *pair[2] = {out, decoded};
        addRows<2>(out, pair, a.hidden);
      }
    }
    if (count == 0) memset(out, 0, (size_t)(a.hidden * 4));
    else if (a.from[0].dtype == WIRE_F32) addMany(out, rows, count, a.hidden);
  }
  return OK;
}

int weightedSum(const WeightedSumArgs &a) {
  bool plain = a.to.dtype == WIRE_F32, direct = a.from.dtype == WIRE_F32;
  float *decoded = a.scratch, *result = a.scratch + a.hidden;
  for (i64 i = 0; i < a.n; i++) {
    i64 t = a.toIndex ? a.toIndex[i] : a.toRow + i;
    if (t < 0 || t >= a.to.capacity) return INDEX_OUT_OF_RANGE;
    float *out = plain ? (float *)a.to.row(t) : result;
    const i32 *index = a.index + i * a.topK;
    const float *weights = a.weights + i * a.topK;
    for (i64 k = 0; k < a.topK; k++)
      if (index[k] >= a.from.capacity) return INDEX_OUT_OF_RANGE;
    if (direct) {
      eachVector(a.hidden, [&](i64 c, i64 n) {
        V s = zero();
        for (i64 k = 0; k < a.topK; k++)
          if (index[k] >= 0) s = fma(splat(weights[k]), loadN((const float *)a.from.row(index[k]) + c, n), s);
        storeN(out + c, s, n);
      });
    } else {
      memset(out, 0, (size_t)(a.hidden * 4));
      for (i64 k = 0; k < a.topK; k++) {
        if (index[k] < 0) continue;
        const float *x = asFloats(a.from, index[k], a.hidden, decoded);
        eachVector(a.hidden, [&](i64 c, i64 n) { storeN(out + c, fma(splat(weights[k]), loadN(x + c, n), loadN(out + c, n)), n); });
      }
    }
    if (!plain) encode(a.to.row(t), out, a.hidden, a.to);
  }
  return OK;
}

} // namespace
} // namespace SY_ISA

#define SY_WIRE_NAME2(isa) wire_##isa
#define SY_WIRE_NAME(isa) SY_WIRE_NAME2(isa)
extern const WireTable SY_WIRE_NAME(SY_ISA);
const WireTable SY_WIRE_NAME(SY_ISA) = {SY_ISA::transfer, SY_ISA::scatter, SY_ISA::sum, SY_ISA::weightedSum};

} // namespace sy
