// Runs the attention kernels on the emulated machine and compares them with a double-precision oracle on the same bf16 inputs.
// Prints one line a case and exits with 1 when a case fails. usage: attention [first word of the cases to run]
#include <string>

#include "attention_batch.cuh"
#include "attention_decode.cu"
#include "attention_plan.cu"
#include "attention_prefill.cu"
#include "attention_prefill_sm90.cu"
#include "attention_latent.cu"

using att::bf16_bits;

namespace {

struct Case {
  std::string name;
  int heads, kvHeads, width, valueWidth; // valueWidth < width: latent, the value inside the key
  int pageSize;
  std::vector<std::pair<int, int>> rows; // (sequence, position)
  int splits = 1, minTiles = 1, window = 0;
  bool sinks = false, planned = false;
  int gridItems = 0; // 0: as many as rows
};

std::mt19937 generator(7);
float noise() { return std::uniform_real_distribution<float>(-1.f, 1.f)(generator); }

struct Data {
  const Case &c;
  bool latent;
  int sequences = 0, longest = 0, pagesEach, qStride, kvStride, outStride, keyOffset = 8, valueOffset;
  std::vector<bf16_bits> q, kv, out;
  std::vector<int> sequence, position, table;
  std::vector<float> sinks;

  explicit Data(const Case &c) : c(c), latent(c.valueWidth < c.width) {
    for (auto [s, p] : c.rows) sequences = max(sequences, s + 1), longest = max(longest, p + 1);
    pagesEach = (longest + c.pageSize - 1) / c.pageSize;
    qStride = c.heads * c.width + 16;
    outStride = c.heads * c.valueWidth + 8;
    valueOffset = latent ? keyOffset : keyOffset + c.kvHeads * c.width + 8;
    kvStride = valueOffset + c.kvHeads * (latent ? c.width : c.valueWidth) + 8;
    const int pages = sequences * pagesEach;
    auto fill = [](std::vector<bf16_bits> &v, size_t n, float scale) {
      v.resize(n);
      for (auto &x : v) x = att::roundToBf16(noise() * scale);
    };
    fill(q, c.rows.size() * (size_t)qStride, 3.f);
    fill(kv, (size_t)pages * c.pageSize * kvStride, 1.f);
    out.assign(c.rows.size() * (size_t)outStride, 0x7fc0);
    table.resize(sequences * pagesEach);
    for (int i = 0; i < pages; i++) table[i] = pages - 1 - i;
    for (auto [s, p] : c.rows) sequence.push_back(s), position.push_back(p);
    if (c.sinks)
      for (int h = 0; h < c.heads; h++) sinks.push_back(noise() * 3);
    // What no row may see: keys after every row's position.
    std::vector<int> last(sequences, -1);
    for (auto [s, p] : c.rows)
      if (s >= 0) last[s] = max(last[s], p);
    for (int s = 0; s < sequences; s++)
      for (int p = last[s] + 1; p < pagesEach * c.pageSize; p++) {
        bf16_bits *slot = &kv[(size_t)(table[s * pagesEach + p / c.pageSize] * c.pageSize + p % c.pageSize) * kvStride];
        std::fill(slot, slot + kvStride, 0x7fc0);
      }
  }

  // Largest error in units of the bound: see attention.gpu.test.ts for how it comes about.
  double worst(float scale) const {
    double most = 0;
    for (size_t r = 0; r < c.rows.size(); r++)
      for (int h = 0; h < c.heads; h++) {
        const bf16_bits *got = &out[r * outStride + h * c.valueWidth];
        if (sequence[r] < 0 || position[r] < 0) {
          for (int d = 0; d < c.valueWidth; d++)
            if (got[d] != 0) return 1e9;
          continue;
        }
        const int kvHead = h / (c.heads / c.kvHeads), start = c.window ? max(0, position[r] - c.window + 1) : 0;
        std::vector<double> scores;
        std::vector<const bf16_bits *> slots;
        double top = c.sinks ? sinks[h] : -INFINITY, magnitude = 0;
        for (int p = start; p <= position[r]; p++) {
          const bf16_bits *slot = &kv[(size_t)(table[sequence[r] * pagesEach + p / c.pageSize] * c.pageSize + p % c.pageSize) * kvStride];
          double dot = 0, size = 0;
          for (int d = 0; d < c.width; d++) {
            const double x = (double)att::widen(q[r * qStride + h * c.width + d]) * att::widen(slot[keyOffset + kvHead * c.width + d]);
            dot += x, size += std::fabs(x);
          }
          scores.push_back(dot * scale);
          slots.push_back(slot + valueOffset + kvHead * (latent ? c.width : c.valueWidth));
          top = std::max(top, scores.back());
          magnitude = std::max(magnitude, size * scale);
        }
        double total = c.sinks ? std::exp(sinks[h] - top) : 0;
        for (double s : scores) total += std::exp(s - top);
        for (int d = 0; d < c.valueWidth; d++) {
          double want = 0, size = 0;
          for (size_t i = 0; i < scores.size(); i++) {
            const double x = std::exp(scores[i] - top) / total * att::widen(slots[i][d]);
            want += x, size += std::fabs(x);
          }
          const double relative = 0x1p-8 + 0x1p-21 * (scores.size() + 2 * c.width * magnitude);
          const double bound = 0x1p-8 * std::fabs(want) + relative * size + 1e-30;
          const double error = std::fabs(att::widen(got[d]) - want) / bound;
          if (!(error <= most)) most = std::isnan(error) ? 1e9 : error;
        }
      }
    // Guards between rows.
    for (size_t r = 0; r < c.rows.size(); r++)
      for (int d = c.heads * c.valueWidth; d < outStride; d++)
        if (out[r * outStride + d] != 0x7fc0) return 2e9;
    return most;
  }
};

bool run(const Case &c, const machine::Choices &choices) {
  machine::choices = choices;
  generator.seed(7);
  Data d(c);
  const int rows = (int)c.rows.size(), group = c.heads / c.kvHeads;
  const float scale = 1.f / std::sqrt((float)c.width);
  std::vector<int> plan(4 + 3 * rows, -1), counters(rows * c.heads, 0);
  std::vector<float> partials((size_t)rows * c.heads * 64 * (16 * c.valueWidth + 32), NAN);
  const int items = c.gridItems ? c.gridItems : rows;
  int pageShift = -1;
  for (int s = 0; s < 12; s++)
    if (c.pageSize == 1 << s) pageShift = s;
  const int window = c.window ? c.window : 1 << 30;
  const float *sinks = c.sinks ? d.sinks.data() : nullptr;
  int faults[2] = {0, 0};
  auto arguments = [&](auto kernel, const int *plan) {
    return [&, kernel, plan] {
      kernel(d.out.data(), d.q.data(), d.kv.data(), d.sequence.data(), d.position.data(), d.table.data(), plan, partials.data(),
             counters.data(), sinks, faults, rows, d.outStride, d.qStride, d.kvStride, 1, 1, d.pagesEach, d.keyOffset, d.valueOffset,
             c.pageSize, pageShift, c.kvHeads, group, c.splits, c.minTiles, window,
             (int)(d.kv.size() / d.kvStride), (int)d.table.size(), scale * att::LOG2_E);
    };
  };
  const bool hopper = c.name.rfind("hopper", 0) == 0;
  const int *planned = nullptr;
  if (c.planned) {
    const int tileRows = max(1, (hopper ? 192 : 128) / group);
    machine::launch({1, 1, 1}, 1024, 0, [&] { attention_plan(plan.data(), d.sequence.data(), d.position.data(), rows, 1, 1, tileRows); });
    planned = plan.data();
    std::vector<int> seen(rows, 0);
    for (int i = 0; i < plan[0]; i++) seen[plan[4 + i]]++;
    for (int i = 0; i < plan[1]; i++)
      for (int k = 0; k < plan[4 + rows + 2 * i + 1]; k++) seen[plan[4 + rows + 2 * i] + k]++;
    for (int r = 0; r < rows; r++)
      if (seen[r] != 1) return std::printf("FAIL %s: row %d is planned %d times\n", c.name.c_str(), r, seen[r]), false;
  }
  const unsigned headTiles = (group + 15) / 16;
  if (!d.latent) {
    const dim3 grid{(unsigned)items, (unsigned)c.kvHeads * headTiles, (unsigned)c.splits};
    if (c.width == 128) machine::launch(grid, 128, Layout<128>::RING_BYTES * WARPS, arguments(attention_decode_128, planned));
    else machine::launch(grid, 128, Layout<64>::RING_BYTES * WARPS, arguments(attention_decode_64, planned));
    if (c.planned) {
      const dim3 tiles{(unsigned)max(1, items / 4) * c.kvHeads, 1, 1};
      if (hopper) machine::launch(tiles, prefill90::THREADS, prefill90::BYTES, arguments(attention_prefill_128_sm90, planned));
      else if (c.width == 128) machine::launch(tiles, 128, prefill::Layout<128>::BYTES, arguments(attention_prefill_128, planned));
      else machine::launch(tiles, 128, prefill::Layout<64>::BYTES, arguments(attention_prefill_64, planned));
    }
  }
  else {
    const bool few = c.heads <= 16;
    const dim3 grid{(unsigned)items, few ? 1u : (c.heads + 63) / 64u, (unsigned)c.splits};
    const dim3 heads{(unsigned)items, (unsigned)c.heads, 1};
    if (few) {
      machine::launch(grid, 256, latent::Layout<16, 32>::BYTES, arguments(attention_latent_16x32, planned));
      machine::launch(heads, 128, 0, arguments(attention_latent_merge_16x32, planned));
    } else if (c.minTiles == 1) {
      machine::launch(grid, 256, latent::Layout<64, 32>::BYTES, arguments(attention_latent_64x32, planned));
      machine::launch(heads, 128, 0, arguments(attention_latent_merge_64x32, planned));
    } else {
      machine::launch(grid, 256, latent::Layout<64, 64>::BYTES, arguments(attention_latent_64x64, planned));
      machine::launch(heads, 128, 0, arguments(attention_latent_merge_64x64, planned));
    }
  }
  if (faults[0] != 0) return std::printf("FAIL %s: a fault of kind %d at %d\n", c.name.c_str(), faults[0], faults[1]), false;
  for (int count : counters)
    if (count != 0) return std::printf("FAIL %s: a counter was left at %d\n", c.name.c_str(), count), false;
  const double worst = d.worst(scale);
  std::printf("%s %s: largest error %.3f of the bound%s\n", worst <= 1 ? "ok  " : "FAIL", c.name.c_str(), worst,
              choices.copiesAtOnce ? " (copies at once, shuffled, backwards)" : "");
  return worst <= 1;
}

std::vector<std::pair<int, int>> runOf(int sequence, int from, int count) {
  std::vector<std::pair<int, int>> rows;
  for (int i = 0; i < count; i++) rows.push_back({sequence, from + i});
  return rows;
}

std::vector<std::pair<int, int>> joined(std::initializer_list<std::vector<std::pair<int, int>>> parts) {
  std::vector<std::pair<int, int>> rows;
  for (const auto &part : parts) rows.insert(rows.end(), part.begin(), part.end());
  return rows;
}

} // namespace

int main(int count, char **words) {
  std::vector<Case> cases = {
      {"decode of 128, one row, one key", 8, 1, 128, 128, 16, {{0, 0}}},
      {"decode of 128, uneven contexts", 16, 2, 128, 128, 16, {{0, 199}, {1, 0}, {2, 63}, {3, 64}, {1, 17}}},
      {"decode of 128, parts", 8, 1, 128, 128, 16, {{0, 300}, {1, 65}, {2, 3}}, 4},
      {"decode of 128, parts of two tiles, 5 heads a group, pages of 7", 10, 2, 128, 128, 7, {{0, 400}, {1, 130}}, 8, 2},
      {"decode of 128, window and sinks, parts", 4, 2, 128, 128, 1, {{0, 299}, {1, 20}}, 4, 1, 150, true},
      {"decode of 128, 20 heads a group", 20, 1, 128, 128, 64, {{0, 140}}, 2},
      {"decode of 64, padding", 6, 2, 64, 64, 16, {{0, 150}, {-1, 3}, {0, -1}, {1, 9}}, 2},
      {"decode of 64, fewer blocks than rows", 4, 1, 64, 64, 8, {{0, 150}, {1, 80}, {2, 70}, {3, 64}, {4, 200}}, 2, 1, 0, false, false, 2},
      {"prefill of 128, a prompt", 8, 1, 128, 128, 16, runOf(0, 0, 70), 1, 1, 0, false, true},
      {"prefill of 128, chunks and single rows", 8, 2, 128, 128, 16,
       joined({runOf(0, 90, 37), {{1, 70}}, runOf(2, 0, 33), {{3, 5}, {-1, 0}, {-1, 1}}, runOf(4, 60, 9)}), 2, 1, 0, false, true},
      {"prefill of 128, window and sinks, 7 heads a group", 7, 1, 128, 128, 8, joined({runOf(0, 0, 90), runOf(1, 100, 40)}), 1, 1, 50, true, true},
      {"prefill of 64, one head a group", 2, 2, 64, 64, 32, joined({runOf(0, 3, 200), {{1, 7}}}), 1, 1, 0, false, true},
      {"hopper prefill, a prompt", 8, 1, 128, 128, 16, runOf(0, 0, 160), 1, 1, 0, false, true},
      {"hopper prefill, chunks and single rows", 8, 2, 128, 128, 16,
       joined({runOf(0, 290, 37), {{1, 70}}, runOf(2, 0, 33), {{3, 5}, {-1, 0}, {-1, 1}}, runOf(4, 60, 9)}), 2, 1, 0, false, true},
      {"hopper prefill, window and sinks, 7 heads a group", 7, 1, 128, 128, 8, joined({runOf(0, 0, 190), runOf(1, 200, 40)}), 1, 1, 150, true, true},
      {"latent, 16 heads", 16, 1, 576, 512, 16, {{0, 100}, {1, 3}, {-1, 0}}, 2},
      {"latent, 6 heads, sinks and window", 6, 1, 576, 512, 16, {{0, 100}}, 3, 1, 70, true},
      {"latent, 70 heads, tiles of 32 keys", 70, 1, 576, 512, 16, {{0, 100}}, 2},
      {"latent, 64 heads, tiles of 64 keys", 64, 1, 576, 512, 16, {{0, 260}, {1, 70}}, 2, 2},
  };
  bool good = true;
  for (const Case &c : cases) {
    if (count > 1 && c.name.rfind(words[1], 0) != 0) continue;
    good = run(c, {}) && good;
    good = run(c, {true, true, 5}) && good;
  }
  return good ? 0 : 1;
}
