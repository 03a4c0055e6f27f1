// Runs the router's kernel on the emulated machine: ids must be those of a plain selection, weights within rounding. Prints one
// line a case; exits with 1 when one fails.
#include <set>
#include <string>

#include "router.cu"

namespace {

std::mt19937 generator(5);
float noiseOf(float spread) { return std::uniform_real_distribution<float>(-spread, spread)(generator); }

struct Spec {
  const char *name;
  int experts, topK, scoring, groups = 1, topGroups = 1, top2 = 0, normalize = 0;
  bool biased = false;
  float scale = 1;
};

int failures = 0;

void report(const std::string &name, const std::string &wrong) {
  std::printf("%s %s%s\n", wrong.empty() ? "ok" : "FAIL", name.c_str(), wrong.c_str());
  failures += !wrong.empty();
}

struct Routed {
  std::vector<int> ids;
  std::vector<float> weights;
};

Routed run(const Spec &s, int rows, const std::vector<float> &logits, const std::vector<float> &bias, const int *valid, const int *positions, int salt) {
  Routed r{std::vector<int>(rows * 40, -7), std::vector<float>(rows * 40, -7.f)};
  const float *b = s.biased ? bias.data() : nullptr;
  machine::launch({(unsigned)(rows + 3) / 4, 1, 1}, 128, 0, [&] {
    auto kernel = s.experts <= 32 ? router_1 : s.experts <= 64 ? router_2 : s.experts <= 128 ? router_4 : s.experts <= 256 ? router_8 : router_16;
    kernel(r.ids.data(), r.weights.data(), logits.data(), b, valid, positions, rows, s.experts, s.topK, s.scoring, s.groups, s.topGroups, s.top2, s.normalize, s.scale, salt, 40, 40, s.experts, 1);
  });
  return r;
}

// src/device/cpu/reference/moe.ts
void plain(const Spec &s, const float *x, const float *bias, std::vector<int> &ids, std::vector<double> &weights) {
  std::vector<float> score(s.experts), choice(s.experts);
  double total = 0;
  for (int e = 0; e < s.experts; e++) total += std::exp((double)x[e]);
  for (int e = 0; e < s.experts; e++) {
    score[e] = s.scoring == SOFTMAX ? (float)(std::exp((double)x[e]) / total) : s.scoring == SIGMOID ? (float)(1 / (1 + std::exp(-(double)x[e]))) : x[e];
    choice[e] = s.biased ? score[e] + bias[e] : score[e];
  }
  if (s.groups > 1 && s.topGroups < s.groups) {
    const int size = s.experts / s.groups;
    std::vector<std::pair<float, int>> order;
    for (int g = 0; g < s.groups; g++) {
      std::vector<float> in(choice.begin() + g * size, choice.begin() + (g + 1) * size);
      std::sort(in.rbegin(), in.rend());
      order.push_back({-(s.top2 && size > 1 ? in[0] + in[1] : in[0]), g});
    }
    std::sort(order.begin(), order.end());
    for (int i = s.topGroups; i < s.groups; i++)
      for (int e = 0; e < size; e++) choice[order[i].second * size + e] = -3.4e38f;
  }
  std::vector<int> all(s.experts);
  for (int e = 0; e < s.experts; e++) all[e] = e;
  std::stable_sort(all.begin(), all.end(), [&](int a, int b) { return choice[a] > choice[b]; });
  ids.assign(all.begin(), all.begin() + s.topK);
  weights.clear();
  double sum = 0;
  for (int e : ids) weights.push_back(s.scoring == SOFTMAX_AFTER_TOPK ? std::exp((double)score[e]) : (double)score[e]), sum += weights.back();
  for (double &w : weights) w = (s.scoring == SOFTMAX_AFTER_TOPK || s.normalize ? w / sum : w) * s.scale;
}

} // namespace

int main() {
  const Spec specs[] = {
      {"softmax", 10, 3, SOFTMAX},
      {"softmax, normalised", 128, 8, SOFTMAX, 1, 1, 0, 1, false, 2.5f},
      {"softmax after the choice", 33, 4, SOFTMAX_AFTER_TOPK},
      {"sigmoid with a bias", 64, 6, SIGMOID, 1, 1, 0, 1, true, 1.8f},
      {"all experts", 10, 10, SOFTMAX},
      {"groups by their best", 24, 5, SOFTMAX, 4, 2},
      {"groups by their two best", 24, 6, SIGMOID, 8, 3, 1, 1, true},
      {"256 in groups", 256, 8, SIGMOID, 8, 4, 1, 1, true},
      {"500", 500, 32, SOFTMAX},
      {"groups of one", 8, 2, SOFTMAX, 8, 4, 1},
      {"kept groups that hold too few", 8, 4, SOFTMAX, 4, 1},
  };
  const int rows = 21;
  for (unsigned seed : {0u, 2u}) {
    machine::choices.seed = seed;
    for (const Spec &s : specs)
      for (bool tied : {false, true}) {
        std::vector<float> logits(rows * s.experts), bias(s.experts);
        for (float &x : logits) x = tied ? std::floor(noiseOf(2.f)) : noiseOf(4.f);
        for (float &x : bias) x = tied ? 0.25f : noiseOf(1.f);
        const Routed got = run(s, rows, logits, bias, nullptr, nullptr, -1);
        std::string wrong;
        for (int r = 0; r < rows && wrong.empty(); r++) {
          std::vector<int> ids;
          std::vector<double> weights;
          plain(s, &logits[r * s.experts], bias.data(), ids, weights);
          for (int k = 0; k < s.topK; k++)
            if (got.ids[r * 40 + k] != ids[k]) wrong = " row " + std::to_string(r) + ", choice " + std::to_string(k);
            else if (!(std::fabs(got.weights[r * 40 + k] - weights[k]) <= 1e-5 * (1 + weights[k]))) wrong = " weight of row " + std::to_string(r);
          if (got.ids[r * 40 + s.topK] != -7) wrong = " beyond the choices";
        }
        report(std::string(s.name) + (tied ? ", tied" : "") + (seed ? ", shuffled" : ""), wrong);
      }
  }
  {
    const Spec &s = specs[1];
    std::vector<float> logits(rows * s.experts), none;
    for (float &x : logits) x = noiseOf(3.f);
    const int valid = 5;
    const Routed got = run(s, rows, logits, none, &valid, nullptr, -1);
    bool right = true;
    for (int r = 0; r < rows; r++)
      for (int k = 0; k < s.topK; k++) right &= r < valid ? got.ids[r * 40 + k] >= 0 : got.ids[r * 40 + k] == -1 && got.weights[r * 40 + k] == 0.f;
    report("padding", right ? "" : " rows of padding");
    std::vector<int> positions(rows, 9);
    const Routed drawn = run(s, rows, logits, none, nullptr, positions.data(), 2), again = run(s, rows, logits, none, nullptr, positions.data(), 2);
    right = drawn.ids == again.ids;
    for (int r = 0; r < rows; r++) right &= std::set<int>(&drawn.ids[r * 40], &drawn.ids[r * 40] + s.topK).size() == (size_t)s.topK;
    report("drawn", right ? "" : " draws");
  }
  return failures > 0;
}
