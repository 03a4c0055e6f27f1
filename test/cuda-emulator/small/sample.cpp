// Runs the sampling kernels on the emulated machine: draws must be those of a plain computation in double precision, whatever
// the order of threads and blocks. Prints one line a case; exits with 1 when one fails.
#include <string>

#include "sample.cu"

namespace {

std::mt19937 generator(11);
float noiseOf(float spread) { return std::uniform_real_distribution<float>(-spread, spread)(generator); }

struct Draw {
  float temperature, topP, minP;
  int topK;
  unsigned seed, position;
};

double gumbel(const Draw &d, int token) {
  unsigned words[4];
  ::philox(d.seed, 5u, (unsigned)token / 4u, d.position, words);
  return -std::log(-std::log((words[token & 3] + 0.5) / 4294967296.0));
}

// src/device/cpu/reference/sample.ts
int expected(const float *x, int vocab, const Draw &d) {
  int top = 0;
  for (int v = 1; v < vocab; v++)
    if (x[v] > x[top] || x[top] != x[top]) top = v;
  if (!(d.temperature > 0)) return top;
  std::vector<int> ids;
  std::vector<double> mass(vocab);
  const double highest = (double)x[top] / d.temperature;
  for (int v = 0; v < vocab; v++) {
    const double away = (double)x[v] / d.temperature - highest;
    mass[v] = away >= -40 ? std::exp(away) : 0;
    if (x[v] == x[v]) ids.push_back(v);
  }
  std::sort(ids.begin(), ids.end(), [&](int a, int b) { return x[a] != x[b] ? x[a] > x[b] : a < b; });
  if (d.topK > 0 && d.topK < (int)ids.size()) ids.resize(d.topK);
  if (d.topP < 1) {
    double total = 0, before = 0;
    for (int v : ids) total += mass[v];
    size_t kept = 0;
    for (; kept < ids.size() && before <= (double)d.topP * total; kept++) before += mass[ids[kept]];
    ids.resize(kept);
  }
  int token = top;
  double most = -HUGE_VAL;
  std::sort(ids.begin(), ids.end());
  for (int v : ids) {
    if (!(mass[v] >= (double)d.minP)) continue;
    const double score = (double)x[v] / d.temperature + gumbel(d, v);
    if (score > most) most = score, token = v;
  }
  return token;
}

int failures = 0;

void check(const std::string &name, int vocab, const std::vector<Draw> &draws, int vectors, float (*logit)(int row, int v)) {
  const int rows = (int)draws.size(), stride = vectors ? (vocab + 3) / 4 * 4 : vocab + 3;
  std::vector<float4> storage((size_t)rows * stride / 4 + 2);
  float *logits = reinterpret_cast<float *>(storage.data()) + (vectors ? 0 : 1);
  std::vector<float> params(rows * 8), logprob(rows);
  std::vector<int> out(rows, -7), arrived(rows, 0);
  std::vector<Scan> scans(rows * SPLITS);
  std::vector<Candidate> candidates(rows * SPLITS);
  for (int r = 0; r < rows; r++) {
    for (int v = 0; v < vocab; v++) logits[(size_t)r * stride + v] = logit(r, v);
    const Draw &d = draws[r];
    const float p[8] = {d.temperature, d.topP, d.minP, (float)d.topK, __uint_as_float(d.seed), __uint_as_float(5u), __uint_as_float(d.position), 0};
    std::copy(p, p + 8, &params[r * 8]);
  }
  machine::launch({SPLITS, (unsigned)rows, 1}, THREADS, 0, [&] { sample_scan(scans.data(), logits, vocab, vectors, stride); });
  machine::launch({SPLITS, (unsigned)rows, 1}, THREADS, 0, [&] {
    sample_draw(out.data(), logprob.data(), scans.data(), candidates.data(), arrived.data(), logits, params.data(), vocab, 1, 1, stride, 8);
  });
  std::string wrong;
  for (int r = 0; r < rows; r++) {
    const float *x = logits + (size_t)r * stride;
    const int want = expected(x, vocab, draws[r]);
    double sum = 0, top = -HUGE_VAL;
    for (int v = 0; v < vocab; v++) top = std::max(top, (double)x[v]);
    for (int v = 0; v < vocab; v++) sum += std::exp((double)x[v] - top);
    const double wantLogprob = (double)x[want] - top - std::log(sum);
    if (out[r] != want) wrong += " row " + std::to_string(r) + ": " + std::to_string(out[r]) + " for " + std::to_string(want);
    else if (!(std::fabs(logprob[r] - wantLogprob) < 1e-4)) wrong += " log-probability of row " + std::to_string(r);
    if (arrived[r] != 0) wrong += " counter of row " + std::to_string(r);
  }
  std::printf("%s %s%s\n", wrong.empty() ? "ok" : "FAIL", name.c_str(), wrong.c_str());
  failures += !wrong.empty();
}

std::vector<Draw> drawsOf(int rows) {
  const float temperatures[] = {0.f, 0.3f, 1.f, 2.5f}, topPs[] = {1.f, 0.999f, 0.9f, 0.5f, 0.1f}, minPs[] = {0.f, 0.01f, 0.3f};
  const int topKs[] = {0, 1, 2, 7, 50, 5000};
  std::vector<Draw> draws;
  for (int r = 0; r < rows; r++)
    draws.push_back({temperatures[generator() % 4], topPs[generator() % 5], minPs[generator() % 3], topKs[generator() % 6], (unsigned)generator(), (unsigned)(generator() % 1000)});
  return draws;
}

} // namespace

int main() {
  for (unsigned seed : {0u, 3u}) {
    machine::choices.seed = seed;
    machine::choices.backwards = seed != 0;
    const std::string order = seed ? ", shuffled" : "";
    for (int vocab : {1, 5, 8, 33, 700, 4099}) {
      const std::string name = std::to_string(vocab) + " tokens" + order;
      const int rows = vocab > 1000 ? 6 : 12;
      check(name, vocab, drawsOf(rows), 0, [](int, int) { return noiseOf(4.f); });
      check(name + ", steep", vocab, drawsOf(rows), 0, [](int, int) { return noiseOf(40.f); });
      check(name + ", equal logits", vocab, drawsOf(rows), 0, [](int row, int v) { return (float)((v * 7 + row) % 3); });
    }
    check("wide loads" + order, 1024, drawsOf(8), 1, [](int, int) { return noiseOf(4.f); });
    check("some forbidden" + order, 300, drawsOf(12), 0, [](int, int v) { return v % 3 ? NEG_INF : noiseOf(4.f); });
  }
  return failures > 0;
}
