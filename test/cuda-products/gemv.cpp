// Runs gemv.cu on the emulated machine and compares it with sums in double precision. Rows, ids and inner rows are NaNs or nonsense
// until a thread waits for the kernel before. A line a case; exits with 1 when one fails.
#include "elements.cuh"

#include "gemv.cu"

namespace {

std::mt19937 generator(3);
float noise() { return std::uniform_real_distribution<float>(-1.0f, 1.0f)(generator); }
int below(int n) { return (int)(generator() % (unsigned)n); }
constexpr u16 NAN_BITS = 0x7fc0;
std::vector<bf16> numbers(size_t count) {
  std::vector<bf16> v(count);
  for (auto &x : v) x = to_bf16(noise());
  return v;
}

int failures = 0;
void report(const char *name, bool ok) {
  std::printf("%s %s\n", ok ? "ok  " : "FAIL", name);
  if (!ok) failures++;
}

template <class Kernel> void launch(dim3 grid, unsigned threads, size_t bytes, Kernel kernel) {
  gridDim = grid;
  blockDim = {threads, 1, 1};
  machine::body = kernel;
  for (unsigned b = 0; b < grid.x * grid.y * grid.z; b++) {
    machine::runBlock({b % grid.x, b / grid.x % grid.y, b / grid.x / grid.y}, threads, bytes);
    endOfBlock();
  }
}

struct Sum {
  double value = 0, size = 0;
};
Sum dot(const bf16 *a, const bf16 *b, int k) {
  Sum s;
  for (int i = 0; i < k; i++) {
    const double term = (double)to_float(a[i]) * to_float(b[i]);
    s.value += term, s.size += fabs(term);
  }
  return s;
}
// Sums of k products in f32, in any order of lanes and warps.
double bound(double size, int k) { return size * (k / 32 + 16) * ldexp(1, -24); }
bool within(double got, double want, double most) { return fabs(got - want) <= most; }

struct Dense {
  const char *name;
  int together, rows, n, k, split, heads;
  bool half, bias, accumulate;
};

void run(const Dense &c) {
  const int xStride = c.heads * c.k + 8, outStride = c.heads * c.n + 3;
  const auto x = numbers((size_t)c.rows * xStride), w = numbers((size_t)c.heads * c.n * c.k);
  std::vector<bf16> seen(x.size(), bf16{NAN_BITS}), half((size_t)c.rows * outStride, bf16{NAN_BITS});
  std::vector<float> full((size_t)c.rows * outStride, 7.0f), bias(c.n);
  for (auto &b : bias) b = noise();
  predecessor = [&] { seen = x; };
  const int columns = 8 / c.split;
  const dim3 grid{(unsigned)((c.n + columns - 1) / columns), (unsigned)c.heads, (unsigned)((c.rows + c.together - 1) / c.together)};
  launch(grid, 128, 4096, [&] {
    const float *b = c.bias ? bias.data() : nullptr;
    if (c.half) {
      const auto kernel = c.together == 1 ? gemv_dense_1_bf16 : c.together == 2 ? gemv_dense_2_bf16 : gemv_dense_4_bf16;
      kernel(half.data(), seen.data(), w.data(), b, c.rows, c.n, c.k, c.split, c.accumulate, outStride, xStride, c.n, c.k, (i64)c.n * c.k);
    } else {
      const auto kernel = c.together == 1 ? gemv_dense_1_f32 : c.together == 2 ? gemv_dense_2_f32 : gemv_dense_4_f32;
      kernel(full.data(), seen.data(), w.data(), b, c.rows, c.n, c.k, c.split, c.accumulate, outStride, xStride, c.n, c.k, (i64)c.n * c.k);
    }
  });
  bool ok = true;
  for (int r = 0; r < c.rows; r++)
    for (int i = 0; i < outStride; i++) {
      const size_t at = (size_t)r * outStride + i;
      if (i >= c.heads * c.n) {
        ok = ok && half[at].bits == NAN_BITS && full[at] == 7.0f;
        continue;
      }
      const int head = i / c.n, column = i % c.n;
      Sum s = dot(&x[(size_t)r * xStride + head * c.k], &w[((size_t)head * c.n + column) * c.k], c.k);
      s.size += 16;
      if (c.bias) s.value += bias[column];
      if (c.accumulate) s.value += 7;
      const double got = c.half ? to_float(half[at]) : full[at];
      ok = ok && within(got, s.value, bound(s.size, c.k) + (c.half ? fabs(s.value) * ldexp(1, -8) : 0));
    }
  report(c.name, ok);
}

struct Experts {
  const char *name;
  int rows, topK, experts, hidden, inter, split;
  bool half;
};

void run(const Experts &c) {
  const int slots = c.rows * c.topK, stride = c.topK + 1, xStride = c.hidden + 8, outStride = c.hidden + 5;
  const auto x = numbers((size_t)c.rows * xStride);
  const auto gateUp = numbers((size_t)c.experts * 2 * c.inter * c.hidden), down = numbers((size_t)c.experts * c.hidden * c.inter);
  std::vector<int> ids(c.rows * stride), seenIds(ids.size(), 12345);
  std::vector<float> weights(c.rows * stride), full((size_t)c.rows * outStride, 7.0f);
  for (auto &id : ids) id = below(c.experts + 2) - 1;
  for (auto &w : weights) w = noise();
  std::vector<bf16> seen(x.size(), bf16{NAN_BITS}), inner((size_t)slots * c.inter, bf16{NAN_BITS}), half((size_t)c.rows * outStride, bf16{NAN_BITS});
  predecessor = [&] { seen = x, seenIds = ids; };
  const int columns = 4 / c.split;
  launch({(unsigned)((c.inter + columns - 1) / columns), (unsigned)slots, 1}, 128, 4096, [&] {
    gemv_gate_up(inner.data(), seen.data(), xStride, seenIds.data(), stride, c.topK, c.experts, gateUp.data(), (i64)2 * c.inter * c.hidden,
                 c.inter, c.hidden, c.split, nullptr);
  });
  // The ids are there before the second product starts, the inner rows only when it waits.
  std::vector<bf16> seenInner(inner.size(), bf16{NAN_BITS});
  predecessor = [&] { seenInner = inner; };
  launch({(unsigned)((c.hidden + 1) / 2), (unsigned)c.rows, 1}, 256, 4096, [&] {
    if (c.half)
      gemv_down_bf16(half.data(), outStride, seenInner.data(), ids.data(), stride, weights.data(), stride, c.topK, c.experts, down.data(),
                     (i64)c.hidden * c.inter, c.hidden, c.inter);
    else
      gemv_down_f32(full.data(), outStride, seenInner.data(), ids.data(), stride, weights.data(), stride, c.topK, c.experts, down.data(),
                    (i64)c.hidden * c.inter, c.hidden, c.inter);
  });
  bool ok = true;
  for (int r = 0; r < c.rows; r++) {
    std::vector<Sum> want(c.hidden);
    for (int s = 0; s < c.topK; s++) {
      const int e = ids[r * stride + s];
      const bf16 *in = &inner[(size_t)(r * c.topK + s) * c.inter];
      if (e < 0 || e >= c.experts) {
        ok = ok && in[0].bits == NAN_BITS;
        continue;
      }
      for (int i = 0; i < c.inter; i++) {
        const bf16 *matrix = &gateUp[(size_t)e * 2 * c.inter * c.hidden], *row = &x[(size_t)r * xStride];
        const Sum gate = dot(row, matrix + (size_t)i * c.hidden, c.hidden), up = dot(row, matrix + (size_t)(c.inter + i) * c.hidden, c.hidden);
        const double silu = gate.value / (1 + exp(-gate.value)), value = silu * up.value;
        const double most = 1.1 * fabs(up.value) * bound(gate.size, c.hidden) + fabs(silu) * bound(up.size, c.hidden);
        ok = ok && within(to_float(in[i]), value, most + fabs(value) * ldexp(1, -8) + 1e-6);
      }
      const double weight = weights[r * stride + s];
      for (int i = 0; i < c.hidden; i++) {
        const Sum d = dot(in, &down[((size_t)e * c.hidden + i) * c.inter], c.inter);
        want[i].value += weight * d.value, want[i].size += fabs(weight) * d.size;
      }
    }
    for (int i = 0; i < outStride; i++) {
      const size_t at = (size_t)r * outStride + i;
      if (i >= c.hidden) ok = ok && half[at].bits == NAN_BITS && full[at] == 7.0f;
      else {
        const double most = bound(want[i].size, c.inter + 32 * c.topK) + (c.half ? fabs(want[i].value) * ldexp(1, -8) : 0);
        ok = ok && within(c.half ? to_float(half[at]) : full[at], want[i].value, most);
      }
    }
  }
  report(c.name, ok);
}

} // namespace

int main() {
  const Dense dense[] = {
      {"one row, one warp a pair", 1, 1, 16, 256, 1, 1, true, false, false},
      {"one row, parts of k, a tail, odd columns", 1, 1, 37, 1096, 2, 1, false, true, true},
      {"more of k than is asked for at once", 1, 1, 9, 2600, 1, 1, false, false, false},
      {"shares of k that are empty", 1, 1, 6, 72, 4, 1, false, true, true},
      {"two rows", 2, 2, 24, 520, 4, 1, true, true, false},
      {"three of four rows", 4, 3, 10, 1288, 1, 1, false, true, false},
      {"heads", 2, 2, 12, 128, 1, 3, true, false, false},
      {"more rows than are taken together", 4, 9, 7, 264, 2, 2, true, false, false},
  };
  const Experts experts[] = {
      {"experts of one row", 1, 8, 16, 256, 64, 2, true},
      {"experts of some rows, odd sizes", 3, 3, 5, 136, 40, 1, false},
      {"more choices than warps", 2, 11, 4, 64, 264, 4, true},
  };
  for (unsigned seed : {0u, 5u}) {
    machine::choices.seed = seed;
    for (const auto &c : dense) run(c);
    for (const auto &c : experts) run(c);
  }
  report("experts that do not exist are reported", faultsSeen > 0);
  return failures > 0;
}
