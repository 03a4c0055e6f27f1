// Matrix products on packed weights: linear, headLinear, and the reading of single rows (embed).
//
// Shapes: x [rows, k] f32, W [n, k] packed in panels of 16 output rows, y [rows, n] f32.
// Arithmetic: y[r, j] is one chain of fused multiply-adds over k = 0 .. K-1 in ascending order, starting from +0; then
// the bias is added, then the old y when accumulating. Every tile shape computes exactly that chain, so a row's bits
// depend neither on the number of rows nor on their place. (The x86-64 baseline has no fma: multiply, then add.)
// Algorithm: a tile is P panels x T rows of accumulators in registers. One row: many panels, to hide the latency of the
// chain and to keep several DRAM streams going. Many rows: each weight vector is used T times, x is broadcast from the
// rows in place (no packing of activations).
// Tried (one core of a Xeon with AVX-512, 21 GB/s and 175 GFLOP/s; bf16, N 1536, K 2048): weights 16 bytes off a cache
// line, M 1 325 us, M 8 552, M 64 3145; on cache lines and in 2 MiB pages 317, 443, 2859; prefetch of 8 KiB over all
// streams instead of 1 KiB each, M 8 409 (AVX2, M 4: 641 -> 466). Without the asm pin g++ 12 spills: half the speed.
// Even and odd k in separate chains (two sums a result) would hide latency without many panels, but would make a
// result depend on the tile shape, or cost many rows a second accumulator.
#include "kernels.h"
#include "simd.h"

namespace sy {
namespace SY_ISA {
namespace {

// Registers: 32 vectors of 16 lanes (AVX-512), 32 of 4 (NEON), 16 of 8 (AVX2), 16 of 4 (SSE2; WebAssembly on x86-64).
#if defined(__AVX512F__)
enum { T_MAX = 8 };
constexpr int panelsFor(int t) { return t == 1 ? 8 : t <= 6 ? 4 : 3; }
#elif defined(__AVX2__)
enum { T_MAX = 6 };
constexpr int panelsFor(int t) { return t == 1 ? 4 : t == 2 ? 2 : 1; }
#elif defined(__x86_64__)
enum { T_MAX = 2 };
constexpr int panelsFor(int t) { return t == 1 ? 2 : 1; }
#elif defined(__wasm__)
// No prefetch instruction, so one row takes several streams. 15 registers: V8 keeps one. Three panels of bf16 fit, of f32 two.
// Three and four rows take half a panel at a time: 8 accumulators, 4 elements of x and 2 weight vectors, so that a weight
// is widened for four rows. (Two rows of whole panels widen it twice as often; with fused multiply-adds that is 8% to 30%.)
enum { T_MAX = 4 };
constexpr int panelsFor(int t) { return t == 1 ? 3 : 1; }
constexpr int vectorsFor(int t) { return t <= 2 ? NV : NV / 2; }
#define SY_F32_PANELS 2
#define SY_VECTORS_FOR
#if defined(__wasm_relaxed_simd__)
#define SY_PAIRS_APART 2 // rows from which the two elements of a bf16 pair are kept apart, see multiply()
#else
#define SY_PAIRS_APART 3
#endif
#else
enum { T_MAX = 5 };
constexpr int panelsFor(int t) { return t == 1 ? 4 : t == 2 ? 2 : 1; }
#endif

// Vectors of a panel's row that a tile of `t` rows holds at once; it passes over the panel NV / vectorsFor(t) times.
#ifndef SY_VECTORS_FOR
constexpr int vectorsFor(int) { return NV; }
#endif

// One element of k for all accumulators: acc[p][t] += w[p] * x[t][k].
template <int P, int T, int N>
SY_INLINE void step(const V (&w)[P][N], const float *const (&x)[T], i64 k, V (&acc)[P][T][N]) {
#pragma GCC unroll 8
  for (int t = 0; t < T; t++) {
    V b = splat(x[t][k]);
#pragma GCC unroll 8
    for (int p = 0; p < P; p++)
#pragma GCC unroll 4
      for (int v = 0; v < N; v++) {
        acc[p][t][v] = fma(w[p][v], b, acc[p][t][v]);
        SY_PIN(acc[p][t][v]);
      }
  }
}

template <int P, int T, int N, int KIND>
SY_INLINE void multiply(const char *w, i64 panel, i64 k, const float *const (&x)[T], V (&acc)[P][T][N]) {
  enum { AHEAD = 8192 / P }; // bytes of prefetch in each panel's stream: some 8 KiB in flight whatever the tile
  V a[P][N];
  if (KIND == F32) {
    for (i64 i = 0; i < k; i++, w += 64) {
#pragma GCC unroll 8
      for (int p = 0; p < P; p++) {
        __builtin_prefetch(w + p * panel + AHEAD);
#pragma GCC unroll 4
        for (int v = 0; v < N; v++) a[p][v] = load((const float *)(w + p * panel) + v * W);
      }
      step<P, T, N>(a, x, i, acc);
    }
    return;
  }
#if defined(__wasm__)
  // The branch between the elements of a pair, and reading it twice, keep LLVM and V8 from holding the elements of x for both, or
  // the pair beside what was made of it: one accumulator that spills makes its chain, and so the tile, 1.5 times as long.
  if (T >= SY_PAIRS_APART) {
    for (i64 i = 0; i < k; i++, w += 64) {
      for (int p = 0; p < P; p++)
#pragma GCC unroll 4
        for (int v = 0; v < N; v++) a[p][v] = bits(loadBits(w + p * panel + v * W * 4) << 16);
      step<P, T, N>(a, x, i, acc);
      if (++i == k) return;
      for (int p = 0; p < P; p++)
#pragma GCC unroll 4
        for (int v = 0; v < N; v++)
          a[p][v] = bits(*(const volatile VILoad *)(w + p * panel + v * W * 4) & (i32)0xffff0000);
      step<P, T, N>(a, x, i, acc);
    }
    return;
  }
#endif
  i64 i = 0;
  for (; i + 2 <= k; i += 2, w += 64) {
#pragma GCC unroll 8
    for (int p = 0; p < P; p++) {
      __builtin_prefetch(w + p * panel + AHEAD);
#pragma GCC unroll 4
      for (int v = 0; v < N; v++) a[p][v] = bits(loadBits(w + p * panel + v * W * 4) << 16);
    }
    step<P, T, N>(a, x, i, acc);
#pragma GCC unroll 8
    for (int p = 0; p < P; p++)
#pragma GCC unroll 4
      for (int v = 0; v < N; v++) a[p][v] = bits(loadBits(w + p * panel + v * W * 4) & (i32)0xffff0000);
    step<P, T, N>(a, x, i + 1, acc);
  }
  if (i < k) {
#pragma GCC unroll 8
    for (int p = 0; p < P; p++)
#pragma GCC unroll 4
      for (int v = 0; v < N; v++) a[p][v] = bits(loadBits(w + p * panel + v * W * 4) << 16);
    step<P, T, N>(a, x, i, acc);
  }
}

// Writes N vectors of results of one row (fewer at the end of the last panel): + bias, + old value.
template <int N> SY_INLINE void finish(const LinearJob &job, float *y, i64 column, const V (&acc)[N]) {
#pragma GCC unroll 4
  for (int v = 0; v < N; v++) {
    i64 at = column + v * W, n = job.n - at;
    if (n <= 0) return;
    if (n > W) n = W;
    V r = acc[v];
    if (job.bias) r = r + loadN(job.bias + at, n);
    if (job.accumulate) r = loadN(y + at, n) + r;
    storeN(y + at, r, n);
  }
}

template <int P, int T, int KIND> __attribute__((noinline)) void tile(const LinearJob &job, i64 panel, i64 row) {
  enum { N = vectorsFor(T) };
#ifdef SY_VECTORS_FOR
  for (i64 part = 0; part < NV; part += N)
#else
  const i64 part = 0;
#endif
  {
    const float *x[T];
    V acc[P][T][N];
#pragma GCC unroll 8
    for (int t = 0; t < T; t++) {
      x[t] = job.x + (job.xIndex ? job.xIndex[row + t] : row + t) * job.xStride;
#pragma GCC unroll 8
      for (int p = 0; p < P; p++)
#pragma GCC unroll 4
        for (int v = 0; v < N; v++) acc[p][t][v] = zero();
    }
    multiply<P, T, N, KIND>(job.w + panel * job.panel + part * W * 4, job.panel, job.k, x, acc);
#pragma GCC unroll 8
    for (int t = 0; t < T; t++) {
      float *y = job.y + (job.yIndex ? job.yIndex[row + t] : row + t) * job.yStride;
#pragma GCC unroll 8
      for (int p = 0; p < P; p++) finish(job, y, (panel + p) * 16 + part * W, acc[p][t]);
    }
  }
}

// Rows [row, end) of `P` panels from `panel`, in tiles as equal as they can be.
template <int P, int KIND> void rowsOf(const LinearJob &job, i64 panel, i64 row, i64 end, int t) {
#define SY_TILE(T) \
  case T: \
    if (T <= T_MAX && P <= panelsFor(T)) tile<(P <= panelsFor(T) ? P : 1), (T <= T_MAX ? T : 1), KIND>(job, panel, row); \
    break
  while (row < end) {
    i64 left = end - row, tiles = (left + t - 1) / t, now = (left + tiles - 1) / tiles;
    switch (now) {
      SY_TILE(1); SY_TILE(2); SY_TILE(3); SY_TILE(4); SY_TILE(5); SY_TILE(6); SY_TILE(7); SY_TILE(8);
    }
    row += now;
  }
#undef SY_TILE
}

// Columns in groups of panels that suit the largest row tile in use.
template <int KIND> void product(const LinearJob &job) {
  i64 panels = (job.n + 15) / 16;
  int t = job.rows < T_MAX ? (int)job.rows : T_MAX;
  int group = panelsFor(t);
#ifdef SY_F32_PANELS
  if (KIND == F32 && group > SY_F32_PANELS) group = SY_F32_PANELS;
#endif
  // A chunk of x that stays in the second-level cache while all weights stream past it.
  i64 chunk = (i64)(128 << 10) / (job.k < 64 ? 64 : job.k);
  chunk = chunk < 2 * T_MAX ? 2 * T_MAX : chunk / T_MAX * T_MAX;
  for (i64 row = 0; row < job.rows; row += chunk) {
    i64 end = row + chunk < job.rows ? row + chunk : job.rows;
    i64 p = 0;
    while (p < panels) {
      i64 left = panels - p;
      if (group >= 8 && left >= 8) { rowsOf<8, KIND>(job, p, row, end, t); p += 8; }
      else if (group >= 4 && left >= 4) { rowsOf<4, KIND>(job, p, row, end, t); p += 4; }
      else if (group == 3 && left >= 3) { rowsOf<3, KIND>(job, p, row, end, t); p += 3; }
      else if (group >= 2 && left >= 2) { rowsOf<2, KIND>(job, p, row, end, t); p += 2; }
      else { rowsOf<1, KIND>(job, p, row, end, t); p += 1; }
    }
  }
}

} // namespace

void linearJob(const LinearJob &job) {
  if (job.rows <= 0) return;
  if (job.kind == F32) product<F32>(job);
  else product<BF16>(job);
}

int linear(const LinearArgs &a, i64 rows) {
  linearJob({a.weight.p, a.weight.n, a.weight.k, a.weight.panel, a.weight.kind, a.x.p, a.x.stride, nullptr, a.out.p,
             a.out.stride, nullptr, rows, a.bias, a.accumulate});
  return OK;
}

int headLinear(const HeadLinearArgs &a, i64 rows) {
  for (i64 h = 0; h < a.weight.count; h++)
    linearJob({a.weight.at(h), a.weight.n, a.weight.k, a.weight.panel, a.weight.kind, a.x.p + h * a.xHeadStride,
               a.x.stride, nullptr, a.out.p + h * a.outHeadStride, a.out.stride, nullptr, rows, nullptr, false});
  return OK;
}

int embed(const EmbedArgs &a, i64 rows) {
  i64 k = a.table.k;
  for (i64 r = 0; r < rows; r++) {
    float *out = a.out.row(r);
    i64 id = a.ids.at(r);
    if (id < 0 || id >= a.table.n) {
      memset(out, 0, k * sizeof(float));
      continue;
    }
    const char *panel = a.table.p + id / 16 * a.table.panel;
    if (a.table.kind == F32) {
      const float *w = (const float *)panel + id % 16;
      for (i64 i = 0; i < k; i++) out[i] = w[i * 16];
    } else {
      const u16 *w = (const u16 *)panel + id % 16 * 2;
      u32 *o = (u32 *)out;
      for (i64 i = 0; i < k; i++) o[i] = (u32)w[i / 2 * 32 + (i & 1)] << 16;
    }
  }
  return OK;
}

} // namespace SY_ISA
} // namespace sy
