// Row-wise operations that move or combine a few numbers per element: norms, add, copy, gather, rope, KV store, gates;
// and the end of a sum over ranks, taken where the ranks published their rows.
//
// Shapes are those of src/device/ops.ts. Sums over a row (norms) run in four vector accumulators in a fixed order that
// depends on the width alone. All outputs may be the same rows as their inputs where the contract says so.
// These are bound by cache bandwidth; no variant was worth keeping.
#include "kernels.h"
#include "simd.h"

namespace sy {
namespace SY_ISA {
namespace {

float sumOfSquares(const float *x, i64 width) {
  V s[4] = {zero(), zero(), zero(), zero()};
  i64 i = 0;
  for (; i + 4 * W <= width; i += 4 * W)
    for (int j = 0; j < 4; j++) {
      V v = load(x + i + j * W);
      s[j] = fma(v, v, s[j]);
    }
  for (int j = 0; i < width; i += W, j++) {
    V v = loadN(x + i, width - i < W ? width - i : (i64)W);
    s[j] = fma(v, v, s[j]);
  }
  return sumLanes((s[0] + s[1]) + (s[2] + s[3]));
}

float inverseRms(float squares, i64 width, double eps) {
  return (float)(1.0 / __builtin_sqrt((double)squares / (double)width + eps));
}

void scaleBy(float *out, const float *x, const float *weight, float inverse, i64 width) {
  V inv = splat(inverse);
  eachVector(width, [&](i64 i, i64 n) { storeN(out + i, loadN(x + i, n) * inv * loadN(weight + i, n), n); });
}

} // namespace

int rmsNorm(const RmsNormArgs &a, i64 rows) {
  for (i64 r = 0; r < rows; r++)
    for (i64 g = 0; g < a.groups; g++) {
      const float *x = a.x.row(r) + g * a.width;
      scaleBy(a.out.row(r) + g * a.width, x, a.weight, inverseRms(sumOfSquares(x, a.width), a.width, a.eps), a.width);
    }
  return OK;
}

int addRmsNorm(const AddRmsNormArgs &a, i64 rows) {
  for (i64 r = 0; r < rows; r++) {
    float *residual = a.residual.row(r);
    const float *x = a.x.row(r);
    eachVector(a.width, [&](i64 i, i64 n) { storeN(residual + i, loadN(residual + i, n) + loadN(x + i, n), n); });
    scaleBy(a.out.row(r), residual, a.weight, inverseRms(sumOfSquares(residual, a.width), a.width, a.eps), a.width);
  }
  return OK;
}

namespace {

// residual += x[0] + x[1] + …, the sum made first: N members, or `members` when N is 0. Small groups keep their addresses in registers.
template <int N> void addSum(float *residual, const float *const *x, i64 members, i64 width) {
  eachVector(width, [&](i64 i, i64 n) {
    V s = loadN(x[0] + i, n);
    if (N > 0) {
#pragma GCC unroll 8
      for (int m = 1; m < N; m++) s = s + loadN(x[m] + i, n);
    } else
      for (i64 m = 1; m < members; m++) s = s + loadN(x[m] + i, n);
    storeN(residual + i, loadN(residual + i, n) + s, n);
  });
}

} // namespace

int sumAddRmsNorm(const SumAddRmsNormArgs &a, i64 rows) {
  if (rows == 0) return OK;
  i64 first = a.first.at(0);
  if (first < 0 || first + rows > a.capacity) return INDEX_OUT_OF_RANGE;
  for (i64 r = 0; r < rows; r++) {
    float *residual = a.residual.row(r);
    for (i64 m = 0; m < a.members; m++) a.row[m] = a.x[m].row(first + r);
    switch (a.members) {
      case 2: addSum<2>(residual, a.row, 2, a.width); break;
      case 4: addSum<4>(residual, a.row, 4, a.width); break;
      case 8: addSum<8>(residual, a.row, 8, a.width); break;
      default: addSum<0>(residual, a.row, a.members, a.width);
    }
    scaleBy(a.out.row(r), residual, a.weight, inverseRms(sumOfSquares(residual, a.width), a.width, a.eps), a.width);
  }
  return OK;
}

int add(const AddArgs &a, i64 rows) {
  for (i64 r = 0; r < rows; r++) {
    float *out = a.out.row(r);
    const float *x = a.a.row(r), *y = a.b.row(r);
    eachVector(a.width, [&](i64 i, i64 n) { storeN(out + i, loadN(x + i, n) + loadN(y + i, n), n); });
  }
  return OK;
}

int copy(const CopyArgs &a, i64 rows) {
  for (i64 r = 0; r < rows; r++) memmove(a.out.row(r), a.x.row(r), a.width * sizeof(float));
  return OK;
}

int gatherRows(const GatherArgs &a, i64 rows) {
  for (i64 r = 0; r < rows; r++) {
    i64 i = a.index.at(r);
    if (i < 0 || i >= a.x.capacity) return INDEX_OUT_OF_RANGE;
    memmove(a.out.row(r), a.x.row(i), a.width * sizeof(float));
  }
  return OK;
}

int rope(const RopeArgs &a, i64 rows) {
  i64 half = a.width / 2;
  for (i64 r = 0; r < rows; r++) {
    i64 position = a.positions.at(r);
    if (position < 0 || position >= a.cosRows) return INDEX_OUT_OF_RANGE;
    const float *c = a.cosSin + position * a.width, *s = c + half;
    for (i64 h = 0; h < a.heads; h++) {
      const float *x = a.x.row(r) + h * a.xHeadStride, *y = x + half;
      float *out = a.out.row(r) + h * a.outHeadStride;
      if (a.interleaved) {
        for (i64 i = 0; i < half; i++) {
          a.scratch[i] = x[2 * i];
          a.scratch[half + i] = x[2 * i + 1];
        }
        x = a.scratch;
        y = x + half;
      }
      eachVector(half, [&](i64 i, i64 n) {
        V u = loadN(x + i, n), v = loadN(y + i, n), cv = loadN(c + i, n), sv = loadN(s + i, n);
        storeN(out + i, u * cv - v * sv, n);
        storeN(out + half + i, v * cv + u * sv, n);
      });
    }
  }
  return OK;
}

int storeKv(const StoreKvArgs &a, i64 rows) {
  for (i64 r = 0; r < rows; r++) {
    i64 slot = a.slots.at(r);
    if (slot < 0) continue;
    if (slot >= a.kv.capacity) return INDEX_OUT_OF_RANGE;
    memcpy(a.kv.row(slot), a.x.row(r), a.width * sizeof(float));
  }
  return OK;
}

int gatedActivation(const GatedArgs &a, i64 rows) {
  for (i64 r = 0; r < rows; r++) {
    float *out = a.out.row(r);
    const float *gate = a.x.row(r), *up = gate + a.width;
    eachVector(a.width, [&](i64 i, i64 n) { storeN(out + i, gated(a.activation, loadN(gate + i, n), loadN(up + i, n)), n); });
  }
  return OK;
}

int sigmoidScale(const SigmoidScaleArgs &a, i64 rows) {
  for (i64 r = 0; r < rows; r++) {
    float *out = a.out.row(r);
    const float *x = a.x.row(r);
    V g = sigmoid(splat(a.gate.row(r)[0]));
    if (a.accumulate)
      eachVector(a.width, [&](i64 i, i64 n) { storeN(out + i, loadN(out + i, n) + loadN(x + i, n) * g, n); });
    else
      eachVector(a.width, [&](i64 i, i64 n) { storeN(out + i, loadN(x + i, n) * g, n); });
  }
  return OK;
}

} // namespace SY_ISA
} // namespace sy
