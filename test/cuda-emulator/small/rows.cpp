// Runs norms and the kernels between projection and cache on the emulated machine, against double precision on the same numbers.
// Prints one line a case; exits with 1 when one fails.
#include <string>

#include "norm.cu"
#include "fused_qk.cu"

namespace {

std::mt19937 generator(3);
float noiseOf(float spread) { return std::uniform_real_distribution<float>(-spread, spread)(generator); }
int failures = 0;

void report(const std::string &name, double worst) {
  std::printf("%s %s: %.3f of the bound\n", worst <= 1 ? "ok" : "FAIL", name.c_str(), worst);
  failures += !(worst <= 1);
}

// Rows of T that begin at multiples of 16 bytes, and nothing but `fill` between them.
template <class T> struct Rows {
  int rows, width, stride;
  std::vector<float4> storage;
  Rows(int rows, int width, float spread = 0) : rows(rows), width(width), stride((width + 15) / 8 * 8), storage((size_t)rows * stride / 2 + 4) {
    for (int r = 0; r < rows; r++)
      for (int c = 0; c < stride; c++) data()[r * stride + c] = from_float<T>(c < width && spread ? noiseOf(spread) : 99.f);
  }
  T *data() { return reinterpret_cast<T *>(storage.data()); }
  double at(int r, int c) { return to_float(data()[(size_t)r * stride + c]); }
};

// A result of T is rounded once.
template <class T> double off(double got, double want) {
  const double rounding = sizeof(T) == 2 ? 1.0 / 256 : 0;
  return std::fabs(got - want) / (rounding * std::fabs(want) + 4e-6 * (1 + std::fabs(want)));
}

template <class X, class O, class Kernel> void norms(const std::string &name, Kernel kernel, int width, int groups, bool warps, int threads) {
  const int rows = 3;
  Rows<X> x(rows, width * groups, 2);
  Rows<O> out(rows, width * groups);
  std::vector<float4> w(width / 4 + 1);
  float *weight = reinterpret_cast<float *>(w.data());
  for (int c = 0; c < width; c++) weight[c] = noiseOf(1);
  const unsigned blocks = warps ? (rows * groups + threads / 32 - 1) / (threads / 32) : rows * groups;
  machine::launch({blocks, 1, 1}, threads, 0, [&] { kernel(out.data(), x.data(), weight, rows, width, groups, 1e-6f, out.stride, x.stride); });
  double worst = 0;
  for (int r = 0; r < rows; r++)
    for (int g = 0; g < groups; g++) {
      double squares = 0;
      for (int c = 0; c < width; c++) squares += x.at(r, g * width + c) * x.at(r, g * width + c);
      const double inverse = 1 / std::sqrt(squares / width + 1e-6);
      for (int c = 0; c < width; c++)
        worst = std::max(worst, off<O>(out.at(r, g * width + c), x.at(r, g * width + c) * inverse * weight[c]));
    }
  for (int r = 0; r < rows; r++)
    for (int c = width * groups; c < out.stride; c++)
      if (out.at(r, c) != 99) worst = 1e9;
  report(name + ", " + std::to_string(groups) + " of " + std::to_string(width), worst);
}

template <class X, class Kernel> void added(Kernel kernel, int width, int threads) {
  const int rows = 2;
  Rows<X> x(rows, width, 2);
  Rows<float> residual(rows, width, 3);
  Rows<bf16> out(rows, width);
  auto before = residual;
  std::vector<float4> w(width / 4 + 1);
  float *weight = reinterpret_cast<float *>(w.data());
  for (int c = 0; c < width; c++) weight[c] = noiseOf(1);
  machine::launch({(unsigned)rows, 1, 1}, threads, 0, [&] { kernel(out.data(), residual.data(), x.data(), weight, rows, width, 1e-6f, out.stride, residual.stride, x.stride); });
  double worst = 0;
  for (int r = 0; r < rows; r++) {
    double squares = 0;
    for (int c = 0; c < width; c++) {
      if (residual.at(r, c) != (float)before.at(r, c) + (float)x.at(r, c)) worst = 1e9;
      squares += residual.at(r, c) * residual.at(r, c);
    }
    for (int c = 0; c < width; c++)
      worst = std::max(worst, off<bf16>(out.at(r, c), residual.at(r, c) / std::sqrt(squares / width + 1e-6) * weight[c]));
  }
  report("residual and norm of " + std::to_string(width), worst);
}

struct Turn {
  int width, interleaved, position;
  std::vector<float4> storage;
  const float *table() const { return reinterpret_cast<const float *>(storage.data()); }
  Turn(int width, int interleaved, int position) : width(width), interleaved(interleaved), position(position), storage(5 * width) {
    float *table = reinterpret_cast<float *>(storage.data());
    for (int p = 0; p < 20; p++)
      for (int i = 0; i < width / 2; i++)
        table[p * width + i] = (float)std::cos(p / std::pow(1.3, i)), table[p * width + width / 2 + i] = (float)std::sin(p / std::pow(1.3, i));
  }
  double operator()(const std::vector<double> &v, int from, int c) const {
    if (c >= width) return v[from + c];
    const int half = width / 2, i = c % half;
    const double u = v[from + (interleaved ? 2 * i : i)], w = v[from + (interleaved ? 2 * i + 1 : half + i)];
    const double cosine = table()[position * width + i], sine = table()[position * width + half + i];
    return c < half ? u * cosine - w * sine : w * cosine + u * sine;
  }
};

std::vector<double> normalised(const std::vector<double> &x, const float *weight) {
  double squares = 0;
  for (double v : x) squares += v * v;
  std::vector<double> y;
  for (size_t c = 0; c < x.size(); c++) y.push_back(x[c] / std::sqrt(squares / x.size() + 1e-6) * weight[c]);
  return y;
}

// Kernels by lanes take one argument more.
template <class Kernel> constexpr bool byLanes = false;
template <class T> constexpr bool byLanes<void (*)(T *, T *, const int *, const int *, const float *, const float *, const float *, int *, int, int, int, int, int, int, int, float, int, int, long long, long long, long long, long long)> = true;

template <class T, class Kernel> void toCache(const std::string &name, Kernel kernel, int heads, int kvHeads, int width, int ropeWidth, int interleaved, bool normed, int steps = 0) {
  const int all = heads + 2 * kvHeads, slots[2] = {4, -1}, positions[2] = {7, 3};
  Rows<T> x(2, all * width, 2), kv(6, 2 * kvHeads * width);
  auto before = x;
  std::vector<float4> storage[2] = {std::vector<float4>(width / 4 + 1), std::vector<float4>(width / 4 + 1)};
  float *q = reinterpret_cast<float *>(storage[0].data()), *k = reinterpret_cast<float *>(storage[1].data());
  for (int c = 0; c < width; c++) q[c] = noiseOf(1), k[c] = noiseOf(1);
  int faults[2] = {0, 0};
  const Turn turns[2] = {Turn(ropeWidth, interleaved, 7), Turn(ropeWidth, interleaved, 3)};
  const float *qw = normed ? q : nullptr, *kw = normed ? k : nullptr;
  if constexpr (byLanes<Kernel>) {
    int laneBits = 0;
    while (16 << laneBits < width) laneBits++;
    const int groups = (all * (1 << laneBits) + 31) / 32, chunks = (groups + steps - 1) / steps;
    machine::launch({(unsigned)(2 * chunks + 3) / 4, 1, 1}, 128, 0, [&] {
      kernel(x.data(), kv.data(), slots, positions, turns[0].table(), qw, kw, faults, 2, heads, kvHeads, width, ropeWidth, laneBits, steps, 1e-6f, 6, 20, x.stride, kv.stride, 1, 1);
    });
  } else {
    machine::launch({(unsigned)(2 * all + 7) / 8, 1, 1}, 256, 0, [&] {
      kernel(x.data(), kv.data(), slots, positions, turns[0].table(), qw, kw, faults, 2, heads, kvHeads, width, ropeWidth, interleaved, 1e-6f, 6, 20, x.stride, kv.stride, 1, 1);
    });
  }
  double worst = faults[0] ? 1e9 : 0;
  for (int r = 0; r < 2; r++)
    for (int h = 0; h < all; h++) {
      std::vector<double> head;
      for (int c = 0; c < width; c++) head.push_back(before.at(r, h * width + c));
      if (h < heads + kvHeads && normed) head = normalised(head, h < heads ? q : k);
      for (int c = 0; c < width; c++) {
        if (h >= heads && slots[r] < 0) continue;
        const double want = h < heads + kvHeads ? turns[r](head, 0, c) : head[c];
        worst = std::max(worst, off<T>(h < heads ? x.at(r, h * width + c) : kv.at(4, (h - heads) * width + c), want));
      }
    }
  for (int s : {0, 1, 2, 3, 5})
    for (int c = 0; c < kv.stride; c++)
      if (kv.at(s, c) != 99) worst = 1e9;
  report(name, worst);
}

template <class T, class Kernel> void latentToCache(const std::string &name, Kernel kernel, int latent, int ropeWidth, int interleaved, int threads) {
  const int width = latent + ropeWidth, slots[2] = {4, -1}, positions[2] = {7, 3};
  Rows<T> x(2, width, 2), kv(6, width);
  std::vector<float4> w(latent / 4 + 1);
  float *weight = reinterpret_cast<float *>(w.data());
  for (int c = 0; c < latent; c++) weight[c] = noiseOf(1);
  int faults[2] = {0, 0};
  const Turn turn(ropeWidth, interleaved, 7);
  machine::launch({2, 1, 1}, threads, 0, [&] {
    kernel(x.data(), kv.data(), slots, positions, turn.table(), weight, faults, 2, latent, ropeWidth, interleaved, 1e-6f, 6, 20, x.stride, kv.stride, 1, 1);
  });
  std::vector<double> row, key;
  for (int c = 0; c < latent; c++) row.push_back(x.at(0, c));
  for (int c = latent; c < width; c++) key.push_back(x.at(0, c));
  row = normalised(row, weight);
  double worst = faults[0] ? 1e9 : 0;
  for (int c = 0; c < width; c++) worst = std::max(worst, off<T>(kv.at(4, c), c < latent ? row[c] : turn(key, 0, c - latent)));
  for (int s : {0, 1, 2, 3, 5})
    for (int c = 0; c < kv.stride; c++)
      if (kv.at(s, c) != 99) worst = 1e9;
  report(name, worst);
}

} // namespace

int main() {
  for (unsigned seed : {0u, 4u}) {
    machine::choices.seed = seed;
    norms<bf16, bf16>("a warp a head", rms_norm_warp_bf16_bf16_4, 128, 5, true, 128);
    norms<bf16, bf16>("a warp a head, single elements", rms_norm_warp_bf16_bf16_1, 133, 3, true, 128);
    norms<float, bf16>("a block a row", rms_norm_block_f32_bf16_8, 2048, 1, false, 256);
    norms<float, float>("a block a row", rms_norm_block_f32_f32_1, 133, 1, false, 160);
    norms<bf16, bf16>("more than a block keeps", rms_norm_block_bf16_bf16_8, 9000, 1, false, 256);
    norms<float, float>("one warp a row", rms_norm_block_f32_f32_4, 40, 1, false, 32);
    added<bf16>(add_rms_norm_bf16_bf16_8, 2048, 256);
    added<bf16>(add_rms_norm_bf16_bf16_8, 9000, 256);
    added<float>(add_rms_norm_f32_bf16_1, 77, 96);
    for (int steps : {1, 2, 5}) {
      const std::string by = ", " + std::to_string(steps) + " groups a warp";
      toCache<bf16>("heads of 128" + by, qk_norm_rope_store_bf16_halves, 8, 2, 128, 128, 0, true, steps);
      toCache<bf16>("heads of 64, no norms, interleaved" + by, qk_norm_rope_store_bf16_pairs, 4, 4, 64, 64, 1, false, steps);
      toCache<float>("half of a head rotated" + by, qk_norm_rope_store_f32_halves, 3, 1, 96, 32, 0, true, steps);
      toCache<float>("half of a head rotated, interleaved" + by, qk_norm_rope_store_f32_pairs, 7, 1, 48, 32, 1, true, steps);
      toCache<bf16>("heads of 80" + by, qk_norm_rope_store_bf16_halves, 5, 3, 80, 80, 0, true, steps);
      toCache<bf16>("heads of 256" + by, qk_norm_rope_store_bf16_halves, 2, 1, 256, 128, 0, false, steps);
      toCache<float>("heads of 512" + by, qk_norm_rope_store_f32_pairs, 2, 1, 512, 512, 1, true, steps);
      toCache<bf16>("heads of 16" + by, qk_norm_rope_store_bf16_pairs, 3, 2, 16, 16, 1, true, steps);
    }
    toCache<bf16>("any heads of 128", qk_norm_rope_store_bf16_any, 8, 2, 128, 128, 0, true);
    toCache<float>("any heads, half of each rotated", qk_norm_rope_store_f32_any, 3, 1, 40, 16, 1, true);
    toCache<float>("odd heads", qk_norm_rope_store_f32_any, 2, 2, 19, 6, 0, true);
    latentToCache<bf16>("latent of 512", latent_norm_rope_store_bf16_4, 512, 64, 1, 128);
    latentToCache<float>("odd latent", latent_norm_rope_store_f32_1, 37, 10, 0, 64);
  }
  return failures > 0;
}
