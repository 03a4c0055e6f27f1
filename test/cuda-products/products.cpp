// Runs the kernels of products on the emulated machine and compares them with sums in double precision. A line a case; exits with 1
// when one fails.
#include "elements.cuh"
#include "row_tiles.cuh"
#include "wgmma.cuh"

namespace grouped_kernels {
#include "grouped_gemm_sm90.cu"
}
namespace mma_kernels {
#include "grouped_gemm_mma.cu"
}
namespace row_kernels {
#include "expert_rows.cu"
}

namespace {

std::mt19937 generator(3);
float noise() { return std::uniform_real_distribution<float>(-1.0f, 1.0f)(generator); }
int below(int n) { return (int)(generator() % (unsigned)n); }
std::vector<bf16> numbers(size_t count) {
  std::vector<bf16> v(count);
  for (auto &x : v) x = to_bf16(noise());
  return v;
}
double dot(const bf16 *a, const bf16 *b, int k) {
  double sum = 0;
  for (int i = 0; i < k; i++) sum += (double)to_float(a[i]) * to_float(b[i]);
  return sum;
}
double silu(double x) { return x / (1 + exp(-x)); }

int failures = 0;
void report(const char *name, bool ok) {
  std::printf("%s %s\n", ok ? "ok  " : "FAIL", name);
  if (!ok) failures++;
}

template <class Kernel> void launch(dim3 grid, unsigned threads, size_t bytes, Kernel kernel) {
  gridDim = grid;
  blockDim = {threads, 1, 1};
  machine::body = kernel;
  for (unsigned b = 0; b < grid.x * grid.y; b++) {
    machine::runBlock({b % grid.x, b / grid.x, 0}, threads, bytes);
    endOfBlock();
  }
}

bool close(double got, double want, double relative, int k) { return fabs(got - want) <= 1e-5 * k + fabs(want) * relative + 1e-4; }

constexpr u16 NAN_BITS = 0x7fc0;

// out[o] = x[i] · W[e]ᵀ for every live (o, i, e); everything else stays.
struct Rows {
  std::vector<bf16> x, w, half;
  std::vector<float> full;
  int n, k, outStride, xStride;
  bool gated;
  Rows(int xRows, int outRows, int groups, int n, int k, bool gated)
      : x(numbers((size_t)xRows * (k + 8))), w(numbers((size_t)groups * n * (gated ? 2 : 1) * k)),
        half((size_t)outRows * (n + 8), bf16{NAN_BITS}), full((size_t)outRows * (n + 8), 7.0f), n(n), k(k), outStride(n + 8),
        xStride(k + 8), gated(gated) {}
  i64 matrixBytes() const { return (i64)n * (gated ? 2 : 1) * k * 2; }
  double want(int xRow, int group, int column) const {
    const bf16 *from = &x[(size_t)xRow * xStride], *matrix = &w[(size_t)group * matrixBytes() / 2];
    const double first = dot(from, matrix + (size_t)column * k, k);
    return gated ? silu(first) * dot(from, matrix + (size_t)(n + column) * k, k) : first;
  }
  bool halfIs(int row, int column, double want) const {
    return close(to_float(half[(size_t)row * outStride + column]), want, 0.005, gated ? 16 * k : k);
  }
  bool untouched(int row, int column) const {
    return half[(size_t)row * outStride + column].bits == NAN_BITS && full[(size_t)row * outStride + column] == 7.0f;
  }
};

struct Grouped {
  const char *name;
  enum { MMA, SM90 } kernel;
  bool gated;
  std::vector<int> rows; // of each group; below 0: of none
  int n, k, blocks, chunk;
};

void run(const Grouped &c) {
  std::vector<int4> tiles;
  std::vector<int> groupOf;
  for (size_t g = 0; g < c.rows.size(); g++) {
    const int count = abs(c.rows[g]), group = c.rows[g] < 0 ? -1 : (int)g;
    const int each = rows_of_tile(count, c.kernel == Grouped::SM90 ? 288 : 128);
    for (int at = 0; at < count; at += each) tiles.push_back({group, (int)groupOf.size() + at, std::min(each, count - at), 0});
    groupOf.insert(groupOf.end(), count, group);
  }
  const int total = (int)groupOf.size(), groups = (int)c.rows.size(), count = (int)tiles.size();
  Rows r(total, total + 1, groups, c.n, c.k, c.gated);
  const u8 *w = reinterpret_cast<u8 *>(r.w.data());
  if (c.kernel == Grouped::MMA) {
    const auto kernel = c.gated ? mma_kernels::grouped_gemm_mma_gated : mma_kernels::grouped_gemm_mma;
    const int width = c.gated ? 32 : 64;
    launch({(unsigned)((c.n + width - 1) / width), (unsigned)count + 1, 1}, 256, 46080, [&] {
      kernel(r.x.data(), r.xStride, w, r.matrixBytes(), r.half.data(), r.outStride, tiles.data(), &count, c.n, c.k);
    });
  } else {
    const auto kernel = c.gated ? grouped_kernels::grouped_gemm_gated : grouped_kernels::grouped_gemm;
    const u64 row = (u64)c.k * 2, matrix = (u64)r.matrixBytes();
    const TensorMap x{reinterpret_cast<u8 *>(r.x.data()), {(u64)c.k, (u64)total}, {(u64)r.xStride * 2}, {64, 32}};
    TensorMap large = x;
    large.box[1] = 128;
    const TensorMap plain{w, {(u64)c.k, (u64)c.n, (u64)groups}, {row, matrix}, {64, 128, 1}};
    const TensorMap gated{w, {(u64)c.k, 8, 2, (u64)c.n / 8, (u64)groups}, {row, row * c.n, row * 8, matrix}, {64, 8, 2, 8, 1}};
    const auto boxes = [&](int rows) {
      u8 *out = reinterpret_cast<u8 *>(r.half.data());
      return TensorMap{out, {(u64)c.n, (u64)total}, {(u64)r.outStride * 2}, {c.gated ? 32 : 64, rows}};
    };
    launch({(unsigned)c.blocks, 1, 1}, 384, 4 * 53248 + 16384 + 1024 + 64, [&] {
      kernel(x, large, c.gated ? gated : plain, boxes(32), boxes(8), r.half.data(), r.outStride, tiles.data(), &count, c.n, c.k, c.chunk);
    });
  }
  bool ok = true;
  for (int row = 0; row <= total; row++)
    for (int column = 0; column < r.outStride; column++) {
      const int group = row < total ? groupOf[row] : -1;
      ok = ok && (group < 0 || column >= c.n ? r.untouched(row, column) : r.halfIs(row, column, r.want(row, group, column)));
    }
  report(c.name, ok);
}

struct Sorted {
  const char *name;
  int rows, topK, experts, width;
};

void run(const Sorted &c) {
  using namespace row_kernels;
  const int slots = c.rows * c.topK, stride = c.topK + 2, pieces = (slots + 1023) / 1024;
  std::vector<int> ids(c.rows * stride), counts(c.experts), offsets(c.experts, -5), place(slots, -7), before(pieces * c.experts, -1);
  for (auto &id : ids) id = below(c.experts + 2) - 1;
  std::vector<u16> within(slots);
  std::vector<int4> tiles(slots / 128 + std::min(c.experts, slots) + 1);
  int tileCount = -1;
  const auto x = numbers((size_t)c.rows * (c.width + 8));
  std::vector<bf16> to((size_t)slots * c.width), out((size_t)c.rows * (c.width + 8), bf16{NAN_BITS});
  std::vector<float> weights(c.rows * (c.topK + 1));
  for (auto &w : weights) w = noise();
  // Twice: a launch finds what the one before left.
  for (int time = 0; time < 2; time++) {
    launch({(unsigned)pieces, 1, 1}, 256, c.experts * 4,
           [&] { expert_count(ids.data(), stride, c.topK, slots, c.experts, counts.data(), before.data(), within.data(), nullptr); });
    launch({1, 1, 1}, 1024, 256, [&] { expert_tiles(counts.data(), offsets.data(), c.experts, 128, tiles.data(), &tileCount); });
    launch({(unsigned)(c.rows + 7) / 8, 1, 1}, 256, 0, [&] {
      expert_gather(x.data(), c.width + 8, c.width, ids.data(), stride, c.topK, c.rows, c.experts, offsets.data(), before.data(),
                    within.data(), place.data(), to.data());
    });
  }
  launch({(unsigned)c.rows, (unsigned)(c.width + 1023) / 1024, 1}, 128, 0, [&] {
    expert_combine_bf16(out.data(), c.width + 8, to.data(), c.width, ids.data(), stride, weights.data(), c.topK + 1, c.topK, c.experts,
                             c.width, place.data());
  });
  bool ok = true;
  std::vector<int> used(slots), of(c.experts);
  for (int s = 0; s < slots; s++) {
    const int e = ids[s / c.topK * stride + s % c.topK];
    if (e < 0 || e >= c.experts) {
      ok = ok && place[s] == -1;
      continue;
    }
    of[e]++;
    ok = ok && place[s] >= offsets[e] && place[s] < slots && used[place[s]]++ == 0;
    for (int i = 0; ok && i < c.width; i++)
      ok = to[(size_t)place[s] * c.width + i].bits == x[(size_t)(s / c.topK) * (c.width + 8) + i].bits;
  }
  int at = 0, tile = 0;
  for (int e = 0; e < c.experts; e++) {
    ok = ok && offsets[e] == at && counts[e] == 0;
    const int each = rows_of_tile(of[e], 128);
    for (int r = 0; r < of[e]; r += each, tile++)
      ok = ok && tiles[tile].x == e && tiles[tile].y == at + r && tiles[tile].z == std::min(each, of[e] - r);
    at += of[e];
  }
  for (int s = 0; s < slots; s++) {
    const int e = ids[s / c.topK * stride + s % c.topK];
    ok = ok && (place[s] < 0 || place[s] < offsets[e] + of[e]);
  }
  ok = ok && tile == tileCount;
  for (int r = 0; ok && r < c.rows; r++)
    for (int i = 0; i < c.width + 8; i++) {
      const bf16 got = out[(size_t)r * (c.width + 8) + i];
      double want = 0;
      for (int j = 0; i < c.width && j < c.topK; j++)
        if (const int p = place[r * c.topK + j]; p >= 0) want += weights[r * (c.topK + 1) + j] * to_float(to[(size_t)p * c.width + i]);
      ok = ok && (i < c.width ? close(to_float(got), want, 0.005, 1) : got.bits == NAN_BITS);
    }
  report(c.name, ok);
}

} // namespace

int main() {
  const Grouped grouped[] = {
      {"mma, ragged groups", Grouped::MMA, false, {1, 130, 0, 200}, 136, 136, 0, 0},
      {"mma, gated, rows of no group", Grouped::MMA, true, {77, -128, 5}, 72, 72, 0, 0},
      {"wgmma, one tile", Grouped::SM90, false, {256}, 128, 64, 1, 1},
      {"wgmma, two instructions a step", Grouped::SM90, false, {285}, 136, 328, 2, 1},
      {"wgmma, results in all places", Grouped::SM90, false, {251, 60, 279, 201, 8, 230}, 264, 200, 3, 1},
      {"wgmma, ragged groups, several tiles a block", Grouped::SM90, false, {1, 330, 0, 170, -5, 39}, 264, 392, 3, 2},
      {"wgmma, one step of k, the largest tiles after each other", Grouped::SM90, false, {285, 279, 60, 288, 201, 280}, 264, 40, 2, 1},
      {"wgmma, three steps", Grouped::SM90, false, {285, 12, 279, 60}, 136, 136, 1, 1},
      {"wgmma, gated, one step", Grouped::SM90, true, {285, 12, 279, 60, 190, 30}, 72, 40, 1, 1},
      {"wgmma, gated", Grouped::SM90, true, {77, -128, 5, 281, 250}, 72, 328, 4, 2},
  };
  const Sorted sorted[] = {
      {"rows of one token", 1, 8, 16, 64},
      {"rows of several pieces", 300, 4, 7, 16},
      {"rows wider than a warp loads at once", 200, 8, 130, 2056},
  };
  for (int choice = 0; choice < 3; choice++) {
    machine::choices.copiesAtOnce = choice == 0;
    machine::choices.seed = choice == 2 ? 5 : 0;
    std::printf("copies %s, threads %s\n", choice == 0 ? "at once" : "late", choice == 2 ? "in any order" : "in order");
    for (const auto &c : sorted) run(c);
    for (const auto &c : grouped) run(c);
  }
  // Ids beyond the experts are drawn above, and each is reported.
  report("experts that do not exist are reported", faultsSeen > 0);
  return failures > 0;
}
