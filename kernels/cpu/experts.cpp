// The routed experts of a block of tokens, fused: gate and up, activation, down, weighted sum.
//
// Shapes: x [rows, hidden], ids and weights [rows, topK], gateUp [2 * inter, hidden] and down [hidden, inter] per expert.
// Algorithm: (row, slot) entries are sorted by expert, stably; each expert that has entries runs two matrix products
// whose rows are reached through an index (no copy of x), and the activation between them in place. The results land
// at [row * topK + slot] and are added up per token in slot order: out = fma(weight, y, out), starting from 0.
// With one token this is topK pairs of matrix-vector products and nothing else to speak of. A row's bits depend on its
// own ids and weights only, because the matrix products are independent of the batch (linear.cpp).
// Times (same Xeon; hidden 2048, inner 768, top 8, bf16): 1 row 3.6 ms = 95% of read bandwidth; 8 rows over 43 experts
// 20.4 ms = 96%; 64 rows over 80 experts 46.5 ms = 59% of the multiply-add rate (6 rows an expert). In cache, hidden 256,
// inner 128, top 2: 5.8 us. Copying the rows of an expert together first was not worth trying: rows are read in place.
// Scratch, in elements: entries * 2 inter (gate and up), entries * inter (two index lists), entries * hidden (results).
#include "kernels.h"
#include "simd.h"

namespace sy {
namespace SY_ISA {
namespace {

// Few entries: insertion sort by expert, then by place. Returns how many are not -1, or -1 when an id is out of range.
i64 sortFew(const ExpertsArgs &a, i64 rows, i32 *code) {
  i64 n = 0;
  i32 expertOf[64];
  for (i64 r = 0; r < rows; r++)
    for (i64 s = 0; s < a.topK; s++) {
      i32 e = a.ids.p[r * a.ids.stride + s];
      if (e >= a.gateUp.count) return -1;
      if (e < 0) continue;
      i64 i = n++;
      for (; i > 0 && expertOf[i - 1] > e; i--) { expertOf[i] = expertOf[i - 1]; code[i] = code[i - 1]; }
      expertOf[i] = e;
      code[i] = (i32)(r * a.topK + s);
    }
  return n;
}

// Many entries: counting sort.
i64 sortMany(const ExpertsArgs &a, i64 rows, i32 *code) {
  i64 experts = a.gateUp.count, n = 0;
  memset(a.starts, 0, (experts + 1) * sizeof(i64));
  for (i64 r = 0; r < rows; r++)
    for (i64 s = 0; s < a.topK; s++) {
      i32 e = a.ids.p[r * a.ids.stride + s];
      if (e >= experts) return -1;
      if (e >= 0) a.starts[e]++, n++;
    }
  i64 at = 0;
  for (i64 e = 0; e < experts; e++) {
    i64 c = a.starts[e];
    a.starts[e] = at;
    at += c;
  }
  for (i64 r = 0; r < rows; r++)
    for (i64 s = 0; s < a.topK; s++) {
      i32 e = a.ids.p[r * a.ids.stride + s];
      if (e >= 0) code[a.starts[e]++] = (i32)(r * a.topK + s);
    }
  return n;
}

void runExpert(const ExpertsArgs &a, i64 e, i64 n, const i32 *row, const i32 *code, float *hidden, float *result) {
  i64 inter = a.inter;
  linearJob({a.gateUp.at(e), 2 * inter, a.hidden, a.gateUp.panel, a.gateUp.kind, a.x.p, a.x.stride, row, hidden,
             2 * inter, nullptr, n, a.gateUpBias ? a.gateUpBias + e * 2 * inter : nullptr, false});
  for (i64 i = 0; i < n; i++) {
    float *h = hidden + i * 2 * inter;
    eachVector(inter, [&](i64 c, i64 m) { storeN(h + c, gated(a.activation, loadN(h + c, m), loadN(h + inter + c, m)), m); });
  }
  linearJob({a.down.at(e), a.hidden, inter, a.down.panel, a.down.kind, hidden, 2 * inter, nullptr, result, a.hidden, code,
             n, a.downBias ? a.downBias + e * a.hidden : nullptr, false});
}

} // namespace

int experts(const ExpertsArgs &a, i64 rows) {
  i64 entries = rows * a.topK;
  float *hidden = a.scratch;
  i32 *code = (i32 *)(hidden + entries * 2 * a.inter), *row = code + entries;
  float *result = hidden + entries * 3 * a.inter;
  i64 n = entries <= 64 ? sortFew(a, rows, code) : sortMany(a, rows, code);
  if (n < 0) return INDEX_OUT_OF_RANGE;
  for (i64 i = 0; i < n; i++) row[i] = (i32)(code[i] / a.topK);
  for (i64 i = 0; i < n;) {
    i32 e = a.ids.p[row[i] * a.ids.stride + code[i] % a.topK];
    i64 end = i + 1;
    while (end < n && a.ids.p[row[end] * a.ids.stride + code[end] % a.topK] == e) end++;
    runExpert(a, e, end - i, row + i, code + i, hidden + i * 2 * a.inter, result);
    i = end;
  }
  for (i64 r = 0; r < rows; r++) {
    float *out = a.out.row(r);
    const float *weight = a.weights.row(r);
    const i32 *id = a.ids.p + r * a.ids.stride;
    eachVector(a.hidden, [&](i64 c, i64 m) {
      V sum = zero();
      for (i64 s = 0; s < a.topK; s++)
        if (id[s] >= 0) sum = fma(splat(weight[s]), loadN(result + (r * a.topK + s) * a.hidden + c, m), sum);
      storeN(out + c, sum, m);
    });
  }
  return OK;
}

} // namespace SY_ISA
} // namespace sy
