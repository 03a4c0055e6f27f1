// Vectors in the native width of the instruction set this unit is compiled for: 16, 8 or 4 f32 lanes.
// Invariant: nothing here contracts or reorders arithmetic; every multiply-add is written out (`fma`), so a result is
// fixed by the source alone. The units are compiled with -ffp-contract=off for the same reason.
// Not a general SIMD library: only what the kernels use. No header with inline library functions may be included by a
// kernel (the linker would merge copies compiled for different instruction sets).
#pragma once
#include "args.h"
#include <string.h>

#if defined(__AVX512F__)
#include <immintrin.h>
#define SY_LANES 16
#elif defined(__AVX2__)
#include <immintrin.h>
#define SY_LANES 8
#elif defined(__x86_64__)
#include <emmintrin.h>
#define SY_LANES 4
#elif defined(__aarch64__)
#include <arm_neon.h>
#define SY_LANES 4
#elif defined(__wasm_simd128__)
#include <wasm_simd128.h>
#define SY_LANES 4
#else
#error "no kernels for this processor: x86-64, aarch64 and WebAssembly with SIMD are supported"
#endif

#define SY_INLINE static inline __attribute__((always_inline))

namespace sy {
namespace SY_ISA {

enum { W = SY_LANES, NV = 16 / SY_LANES }; // lanes of a vector, vectors of a panel row
typedef float V __attribute__((vector_size(4 * SY_LANES)));
typedef i32 VI __attribute__((vector_size(4 * SY_LANES)));
typedef float VLoad __attribute__((vector_size(4 * SY_LANES), aligned(4), may_alias));
typedef i32 VILoad __attribute__((vector_size(4 * SY_LANES), aligned(4), may_alias));

SY_INLINE V load(const float *p) { return *(const VLoad *)p; }
SY_INLINE VI loadBits(const void *p) { return *(const VILoad *)p; }
SY_INLINE void store(float *p, V v) { *(VLoad *)p = v; }

// a * b + c in one rounding where the hardware has it (all but the x86-64 baseline and WebAssembly without relaxed SIMD;
// relaxed SIMD leaves it to the machine, which does the same every time).
#if defined(__AVX512F__)
SY_INLINE V splat(float s) { return (V)_mm512_set1_ps(s); }
SY_INLINE V fma(V a, V b, V c) { return (V)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c); }
// g++ 12 spills accumulators unless something pins them to registers: 2x slower without (see linear.cpp).
#define SY_PIN(v) asm volatile("" : "+v"(v))
#elif defined(__AVX2__)
SY_INLINE V splat(float s) { return (V)_mm256_set1_ps(s); }
SY_INLINE V fma(V a, V b, V c) { return (V)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c); }
#define SY_PIN(v) asm volatile("" : "+x"(v))
#elif defined(__x86_64__)
SY_INLINE V splat(float s) { return (V)_mm_set1_ps(s); }
SY_INLINE V fma(V a, V b, V c) { return a * b + c; }
#define SY_PIN(v) asm volatile("" : "+x"(v))
#elif defined(__wasm__)
SY_INLINE V splat(float s) { return (V)wasm_f32x4_splat(s); }
#if defined(__wasm_relaxed_simd__)
SY_INLINE V fma(V a, V b, V c) { return (V)wasm_f32x4_relaxed_madd((v128_t)a, (v128_t)b, (v128_t)c); }
#else
SY_INLINE V fma(V a, V b, V c) { return a * b + c; }
#endif
#define SY_PIN(v) (void)0
#else
SY_INLINE V splat(float s) { return (V)vdupq_n_f32(s); }
SY_INLINE V fma(V a, V b, V c) { return (V)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b); }
#define SY_PIN(v) asm volatile("" : "+w"(v))
#endif

SY_INLINE float fma1(float a, float b, float c) {
#if defined(__AVX2__) || defined(__aarch64__)
  return __builtin_fmaf(a, b, c);
#else
  return a * b + c;
#endif
}

// Products of the low 32 bits of 64-bit lanes.
typedef u64 VU __attribute__((vector_size(4 * SY_LANES)));
SY_INLINE VU multiplyLow(VU a, VU b) {
#if defined(__AVX512F__)
  return (VU)_mm512_mul_epu32((__m512i)a, (__m512i)b);
#elif defined(__AVX2__)
  return (VU)_mm256_mul_epu32((__m256i)a, (__m256i)b);
#elif defined(__x86_64__)
  return (VU)_mm_mul_epu32((__m128i)a, (__m128i)b);
#elif defined(__wasm__)
  v128_t x = (v128_t)a, y = (v128_t)b;
  return (VU)wasm_u64x2_extmul_low_u32x4(wasm_i32x4_shuffle(x, x, 0, 2, 0, 2), wasm_i32x4_shuffle(y, y, 0, 2, 0, 2));
#else
  return (VU)vmull_u32(vmovn_u64((uint64x2_t)a), vmovn_u64((uint64x2_t)b));
#endif
}

SY_INLINE V zero() { return V{}; }
SY_INLINE V bits(VI v) { return (V)v; }
SY_INLINE V pick(VI mask, V yes, V no) { return (V)(((VI)yes & mask) | ((VI)no & ~mask)); }
SY_INLINE bool anyLane(VI mask) {
#if defined(__AVX512F__)
  return _mm512_test_epi32_mask((__m512i)mask, (__m512i)mask) != 0;
#elif defined(__AVX2__)
  return _mm256_movemask_epi8((__m256i)mask) != 0;
#elif defined(__x86_64__)
  return _mm_movemask_epi8((__m128i)mask) != 0;
#elif defined(__wasm__)
  return wasm_v128_any_true((v128_t)mask);
#else
  return vmaxvq_u32((uint32x4_t)mask) != 0;
#endif
}
#if defined(__wasm__) // the same as below in one instruction
SY_INLINE V maxOf(V a, V b) { return (V)wasm_f32x4_pmax((v128_t)b, (v128_t)a); }
SY_INLINE V minOf(V a, V b) { return (V)wasm_f32x4_pmin((v128_t)b, (v128_t)a); }
#else
SY_INLINE V maxOf(V a, V b) { return pick(a > b, a, b); }
SY_INLINE V minOf(V a, V b) { return pick(a < b, a, b); }
#endif

// The first n < W elements of p, other lanes 0. Reads nothing beyond them.
SY_INLINE V loadPart(const float *p, i64 n) {
#if defined(__AVX512F__)
  return (V)_mm512_maskz_loadu_ps((__mmask16)((1u << n) - 1), p);
#else
  float t[W] = {};
  for (i64 i = 0; i < n; i++) t[i] = p[i];
  return load(t);
#endif
}
SY_INLINE void storePart(float *p, V v, i64 n) {
#if defined(__AVX512F__)
  _mm512_mask_storeu_ps(p, (__mmask16)((1u << n) - 1), (__m512)v);
#else
  float t[W];
  store(t, v);
  for (i64 i = 0; i < n; i++) p[i] = t[i];
#endif
}

// Sum and maximum of the lanes: halves onto each other until one is left.
#if defined(__x86_64__)
#define SY_FOLD(name, OP) \
  SY_INLINE float name(V v) { \
    __m128 h; \
    SY_FOLD_TO_128(v, h, OP) \
    h = _mm_##OP##_ps(h, _mm_movehl_ps(h, h)); \
    return _mm_cvtss_f32(_mm_##OP##_ss(h, _mm_shuffle_ps(h, h, 1))); \
  }
#if defined(__AVX512F__)
#define SY_FOLD_TO_128(v, h, OP) \
  __m256 y = _mm256_##OP##_ps(_mm512_castps512_ps256((__m512)v), _mm512_extractf32x8_ps((__m512)v, 1)); \
  h = _mm_##OP##_ps(_mm256_castps256_ps128(y), _mm256_extractf128_ps(y, 1));
#elif defined(__AVX2__)
#define SY_FOLD_TO_128(v, h, OP) \
  h = _mm_##OP##_ps(_mm256_castps256_ps128((__m256)v), _mm256_extractf128_ps((__m256)v, 1));
#else
#define SY_FOLD_TO_128(v, h, OP) h = (__m128)v;
#endif
SY_FOLD(sumLanes, add)
SY_FOLD(maxLanes, max)
#elif defined(__wasm__)
SY_INLINE float sumLanes(V v) { return (v[0] + v[2]) + (v[1] + v[3]); }
SY_INLINE float maxLanes(V v) {
  V h = maxOf(v, (V)wasm_i32x4_shuffle((v128_t)v, (v128_t)v, 2, 3, 2, 3));
  return h[0] > h[1] ? h[0] : h[1];
}
#else
SY_INLINE float sumLanes(V v) { return (v[0] + v[2]) + (v[1] + v[3]); }
SY_INLINE float maxLanes(V v) { return vmaxvq_f32((float32x4_t)v); }
#endif

// out[0..4) = the lane sums of a, b, c and d, each added in the same order (so a score does not depend on its place).
SY_INLINE void sumLanes4(V a, V b, V c, V d, float *out) {
#if defined(__AVX512F__)
  __m512 ab = _mm512_add_ps(_mm512_shuffle_f32x4((__m512)a, (__m512)b, 0x44), _mm512_shuffle_f32x4((__m512)a, (__m512)b, 0xee));
  __m512 cd = _mm512_add_ps(_mm512_shuffle_f32x4((__m512)c, (__m512)d, 0x44), _mm512_shuffle_f32x4((__m512)c, (__m512)d, 0xee));
  __m512 s = _mm512_add_ps(_mm512_shuffle_f32x4(ab, cd, 0x88), _mm512_shuffle_f32x4(ab, cd, 0xdd)); // 4 lanes each
  s = _mm512_add_ps(s, _mm512_permute_ps(s, 0x4e));
  s = _mm512_add_ps(s, _mm512_permute_ps(s, 0xb1));
  __m512i first = _mm512_setr_epi32(0, 4, 8, 12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0);
  _mm_storeu_ps(out, _mm512_castps512_ps128(_mm512_permutexvar_ps(first, s)));
#elif defined(__AVX2__)
  __m256 ab = _mm256_hadd_ps((__m256)a, (__m256)b), cd = _mm256_hadd_ps((__m256)c, (__m256)d);
  __m256 s = _mm256_hadd_ps(ab, cd);
  _mm_storeu_ps(out, _mm_add_ps(_mm256_castps256_ps128(s), _mm256_extractf128_ps(s, 1)));
#elif defined(__x86_64__)
  __m128 A = (__m128)a, B = (__m128)b, C = (__m128)c, D = (__m128)d;
  _MM_TRANSPOSE4_PS(A, B, C, D);
  _mm_storeu_ps(out, _mm_add_ps(_mm_add_ps(A, B), _mm_add_ps(C, D)));
#elif defined(__wasm__)
  v128_t ab0 = wasm_i32x4_shuffle((v128_t)a, (v128_t)b, 0, 4, 1, 5), ab1 = wasm_i32x4_shuffle((v128_t)a, (v128_t)b, 2, 6, 3, 7);
  v128_t cd0 = wasm_i32x4_shuffle((v128_t)c, (v128_t)d, 0, 4, 1, 5), cd1 = wasm_i32x4_shuffle((v128_t)c, (v128_t)d, 2, 6, 3, 7);
  V low = (V)wasm_i64x2_shuffle(ab0, cd0, 0, 2) + (V)wasm_i64x2_shuffle(ab0, cd0, 1, 3);
  V high = (V)wasm_i64x2_shuffle(ab1, cd1, 0, 2) + (V)wasm_i64x2_shuffle(ab1, cd1, 1, 3);
  store(out, low + high);
#else
  float32x4_t ab = vpaddq_f32((float32x4_t)a, (float32x4_t)b), cd = vpaddq_f32((float32x4_t)c, (float32x4_t)d);
  vst1q_f32(out, vpaddq_f32(ab, cd));
#endif
}

// e^x to about one unit in the last place: x = n ln 2 + r, a polynomial of degree 7 in r (the usual single-precision
// coefficients, Cephes), times 2^n. Below -87.33 the result is 0, above 88.37 infinity; exp(-inf) = 0; NaN stays NaN.
SY_INLINE V vexp(V x) {
  const V magic = splat(12582912.f); // 1.5 * 2^23: adding it rounds to an integer
  VI low = x < splat(-87.33654f), high = x > splat(88.37f);
  V z = pick(low | high, zero(), x);
  V shifted = fma(z, splat(1.44269504f), magic);
  V n = shifted - magic;
  V r = fma(n, splat(-0.693359375f), z);
  r = fma(n, splat(2.12194440e-4f), r);
  V p = splat(1.9875691500e-4f);
  p = fma(p, r, splat(1.3981999507e-3f));
  p = fma(p, r, splat(8.3334519073e-3f));
  p = fma(p, r, splat(4.1665795894e-2f));
  p = fma(p, r, splat(1.6666665459e-1f));
  p = fma(p, r, splat(5.0000001201e-1f));
  p = fma(p, r * r, r) + splat(1.f);
  VI exponent = ((VI)shifted - (VI)magic) << 23;
  V e = bits((VI)p + exponent);
  e = pick(low, zero(), e);
  return pick(high, splat(__builtin_inff()), e);
}

SY_INLINE V sigmoid(V x) { return splat(1.f) / (splat(1.f) + vexp(-x)); }

// The first n < W results of an elementwise function, without reading or writing beyond them.
template <class F> SY_INLINE void eachVector(i64 width, F f) {
  i64 i = 0;
  for (; i + W <= width; i += W) f(i, (i64)W);
  if (i < width) f(i, width - i);
}
SY_INLINE V loadN(const float *p, i64 n) { return n == W ? load(p) : loadPart(p, n); }
SY_INLINE void storeN(float *p, V v, i64 n) {
  if (n == W) store(p, v);
  else storePart(p, v, n);
}

// act(gate, up), see GatedActivation in src/device/ops.ts.
SY_INLINE V gated(const Activation &a, V gate, V up) {
  if (a.kind == SILU) return gate * sigmoid(gate) * up;
  V limit = splat(a.limit);
  gate = minOf(gate, limit);
  up = maxOf(minOf(up, limit), -limit);
  return gate * sigmoid(splat(a.alpha) * gate) * (up + splat(1.f));
}

} // namespace SY_ISA
} // namespace sy
