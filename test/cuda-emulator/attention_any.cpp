// Runs attention of any widths, compiled for one shape (ANY_* macros of attention_any_shape.cuh, TEST_HEADS, TEST_KV_HEADS), on the emulated
// machine and compares it with a double-precision oracle on the same inputs; bits too: of a row alone and in a batch, of any number of blocks
// that share its parts, of another page size. Prints one line a case and exits with 1 when a case fails.
#include <string>

#ifdef ANY_LANES
#include "attention_any_lanes.cu"
#define KERNEL attention_any_lanes
#else
#include "attention_any_mma.cu"
#define KERNEL attention_any_mma
#endif

namespace {

using namespace anywidth;
using Element = Walk::Element;
constexpr bool HALF = sizeof(Element) == 2;
constexpr int GROUP_HEADS = TEST_HEADS / TEST_KV_HEADS;

std::mt19937 generator(7);
float noise() { return std::uniform_real_distribution<float>(-1.f, 1.f)(generator); }
float wide(float x) { return x; }
float wide(unsigned short x) { return att::widen(x); }
void set(float &to, float x) { to = x; }
void set(unsigned short &to, float x) { to = att::roundToBf16(x); }
// Bits that no kernel writes.
Element untouched() {
  Element x;
  std::memset(&x, 0xff, sizeof x);
  return x;
}

// Offsets and strides are multiples of ACCESS (STORE for results) and of nothing more, as far as the shape lets them.
constexpr int odd(int n, int unit) { return (n + unit - 1) / unit * unit + (unit == 16 / (int)sizeof(Element) ? unit : n / unit % 2 ? 2 * unit : unit); }

struct Case {
  std::string name;
  int pageSize;
  std::vector<std::pair<int, int>> rows; // (sequence, position)
  int minTiles = 1, window = 0;
  bool sinks = false;
};

struct Data {
  const Case &c;
  int pageSize, sequences = 1, longest = 1, pagesEach, kvStride;
  static constexpr int KEYS_AT = ACCESS, Q_STRIDE = odd(TEST_HEADS * KEY, ACCESS), OUT_STRIDE = odd(TEST_HEADS * VALUE, STORE);
  static constexpr int VALUES_AT_COLUMN = INSIDE ? KEYS_AT : odd(KEYS_AT + TEST_KV_HEADS * KEY, ACCESS);
  std::vector<float4> memory[3];
  Element *q, *kv, *out;
  std::vector<int> sequence, position, table;
  std::vector<float> sinks;

  Element *room(int which, size_t count) {
    memory[which].resize(count * sizeof(Element) / 16 + 2);
    return reinterpret_cast<Element *>(memory[which].data());
  }

  Data(const Case &c, int pageSize) : c(c), pageSize(pageSize) {
    generator.seed(7);
    for (auto [s, p] : c.rows) sequences = max(sequences, s + 1), longest = max(longest, p + 1);
    pagesEach = (longest + pageSize - 1) / pageSize;
    kvStride = odd(VALUES_AT_COLUMN + TEST_KV_HEADS * (INSIDE ? KEY : VALUE), ACCESS);
    const int pages = sequences * pagesEach;
    q = room(0, c.rows.size() * (size_t)Q_STRIDE);
    kv = room(1, (size_t)pages * pageSize * kvStride);
    out = room(2, c.rows.size() * (size_t)OUT_STRIDE);
    for (size_t i = 0; i < c.rows.size() * (size_t)Q_STRIDE; i++) set(q[i], noise() * 2);
    for (int i = 0; i < pages; i++) table.push_back(pages - 1 - i);
    // Whatever no row may see is NaN.
    for (size_t i = 0; i < (size_t)pages * pageSize * kvStride; i++) kv[i] = untouched();
    std::vector<int> last(sequences, -1);
    for (auto [s, p] : c.rows)
      if (s >= 0) last[s] = max(last[s], p);
    for (int s = 0; s < sequences; s++)
      for (int p = 0; p <= last[s]; p++) {
        for (int i = 0; i < TEST_KV_HEADS * KEY; i++) set(slot(s, p)[KEYS_AT + i], noise());
        if (!INSIDE)
          for (int i = 0; i < TEST_KV_HEADS * VALUE; i++) set(slot(s, p)[VALUES_AT_COLUMN + i], noise());
      }
    for (auto [s, p] : c.rows) sequence.push_back(s), position.push_back(p);
    if (c.sinks)
      for (int h = 0; h < TEST_HEADS; h++) sinks.push_back(noise() * 3);
  }

  Element *slot(int s, int p) { return kv + (size_t)(table[s * pagesEach + p / pageSize] * pageSize + p % pageSize) * kvStride; }

  // Rows `first` to first + count - 1, `blocks` along z.
  bool launch(int first, int count, int blocks, int *faults) {
    const int visible = c.window ? min(c.window, longest) : longest, tiles = (visible + TILE - 1) / TILE;
    const int tilesAPart = max(c.minTiles, (tiles + MOST_PARTS - 1) / MOST_PARTS), parts = (tiles + tilesAPart - 1) / tilesAPart;
    int pageShift = -1;
    for (int s = 0; s < 12; s++)
      if (pageSize == 1 << s) pageShift = s;
    const unsigned pieces = TEST_KV_HEADS * ((GROUP_HEADS + HEADS - 1) / HEADS);
    std::vector<float4> partials((size_t)count * pieces * parts * PART_FLOATS / 4, make_float4(NAN, NAN, NAN, NAN));
    std::vector<int> counters(count * pieces, 0);
    machine::launch({(unsigned)count, pieces, (unsigned)blocks}, THREADS, Memory<Walk::BYTES>::BYTES, [&] {
      KERNEL(reinterpret_cast<att::bf16_bits *>(out + (size_t)first * OUT_STRIDE),
             reinterpret_cast<const att::bf16_bits *>(q + (size_t)first * Q_STRIDE), reinterpret_cast<const att::bf16_bits *>(kv),
             sequence.data() + first, position.data() + first, table.data(), nullptr, reinterpret_cast<float *>(partials.data()),
             counters.data(), c.sinks ? sinks.data() : nullptr, faults, count, OUT_STRIDE, Q_STRIDE, kvStride, 1, 1, pagesEach, KEYS_AT,
             VALUES_AT_COLUMN, pageSize, pageShift, TEST_KV_HEADS, GROUP_HEADS, parts, c.minTiles, c.window ? c.window : 1 << 30,
             sequences * pagesEach * pageSize, (int)table.size(), 1.5f / std::sqrt((float)KEY) * att::LOG2_E);
    });
    for (int left : counters)
      if (left != 0) return false;
    return true;
  }

  void clear() { std::fill(out, out + c.rows.size() * (size_t)OUT_STRIDE, untouched()); }
  std::vector<Element> result() const { return std::vector<Element>(out, out + c.rows.size() * (size_t)OUT_STRIDE); }

  // Largest error in units of the bound. bf16: as in test/gpu/attention.suite.ts. f32: a score is a chain of at most 40 additions, and is scaled
  // and subtracted; both weights and their total take that over; sums have as many terms as there are keys.
  double worst() {
    double most = 0;
    const double scale = 1.5f / std::sqrt((float)KEY);
    for (size_t r = 0; r < c.rows.size(); r++) {
      for (int h = 0; h < TEST_HEADS; h++) {
        const Element *got = &out[r * OUT_STRIDE + h * VALUE];
        if (sequence[r] < 0 || position[r] < 0) {
          for (int d = 0; d < VALUE; d++)
            if (got[d] != 0) return 1e9;
          continue;
        }
        const int kvHead = h / GROUP_HEADS, start = c.window ? max(0, position[r] - c.window + 1) : 0;
        std::vector<double> scores;
        double top = c.sinks ? sinks[h] : -INFINITY, magnitude = 0;
        for (int p = start; p <= position[r]; p++) {
          double dot = 0, size = 0;
          for (int d = 0; d < KEY; d++) {
            const double x = (double)wide(q[r * Q_STRIDE + h * KEY + d]) * wide(slot(sequence[r], p)[KEYS_AT + kvHead * KEY + d]);
            dot += x, size += std::fabs(x);
          }
          scores.push_back(dot * scale);
          top = std::max(top, scores.back());
          magnitude = std::max(magnitude, size * scale);
        }
        double total = c.sinks ? std::exp(sinks[h] - top) : 0;
        for (double s : scores) total += std::exp(s - top);
        const double n = (double)scores.size();
        const double rounding = HALF ? 0x1p-8 : 0x1p-23;
        const double relative = rounding + (HALF ? 0x1p-21 * (n + 2 * KEY * magnitude) : 0x1p-24 * (n + 84 * magnitude + 16));
        for (int d = 0; d < VALUE; d++) {
          double want = 0, size = 0;
          for (int i = 0; i < (int)n; i++) {
            const double x = std::exp(scores[i] - top) / total * wide(slot(sequence[r], start + i)[VALUES_AT_COLUMN + kvHead * VALUE + d]);
            want += x, size += std::fabs(x);
          }
          const double error = std::fabs(wide(got[d]) - want) / (rounding * std::fabs(want) + relative * size + 1e-30);
          if (!(error <= most)) most = std::isnan(error) ? 1e9 : error;
        }
      }
      const Element guard = untouched();
      for (int d = TEST_HEADS * VALUE; d < OUT_STRIDE; d++)
        if (std::memcmp(&out[r * OUT_STRIDE + d], &guard, sizeof guard)) return 2e9;
    }
    return most;
  }
};

bool same(const std::vector<Element> &a, const std::vector<Element> &b) { return std::memcmp(a.data(), b.data(), a.size() * sizeof(Element)) == 0; }

bool report(const std::string &name, bool good, const std::string &what) {
  std::printf("%s %s: %s\n", good ? "ok  " : "FAIL", name.c_str(), what.c_str());
  return good;
}

bool run(const Case &c) {
  int faults[2] = {0, 0};
  machine::choices = {};
  Data d(c, c.pageSize);
  d.clear();
  bool good = d.launch(0, (int)c.rows.size(), 1, faults);
  const std::vector<Element> first = d.result();
  const double worst = d.worst();
  good = report(c.name, good && worst <= 1 && faults[0] == 0, "largest error " + std::to_string(worst) + " of the bound");
  // Blocks share the parts in some way; copies happen at once, threads and blocks run in another order.
  for (int blocks : {1, 2, 3, 16}) {
    machine::choices = blocks == 3 ? machine::Choices{} : machine::Choices{true, true, 5};
    d.clear();
    const bool counted = d.launch(0, (int)c.rows.size(), blocks, faults);
    if (!counted || !same(d.result(), first) || faults[0]) good = report(c.name, false, std::to_string(blocks) + " blocks give other bits");
  }
  machine::choices = {};
  Data other(c, c.pageSize == 5 ? 16 : 5);
  other.clear();
  for (int r = 0; r < (int)c.rows.size(); r++) other.launch(r, 1, r % 3 + 1, faults);
  if (!same(other.result(), first) || faults[0]) good = report(c.name, false, "rows alone, in other pages, have other bits");
  return good;
}

// A page that is none sets the fault word, also at a position beyond the page table, and nothing outside is touched.
bool meetsFaults() {
  const Case c = {"faults", 16, {{0, 150}, {1, 40}}, 1};
  bool good = true;
  for (int bad : {-1, 1 << 20, 2}) {
    Data d(c, 16);
    if (bad == 2) d.position[0] = 60000;
    else d.table[1] = bad;
    int faults[2] = {0, 0};
    for (int blocks : {1, 3}) d.launch(0, 2, blocks, faults);
    good = report("fault " + std::to_string(bad), faults[0] == att::FAULT_PAGE, "kind " + std::to_string(faults[0])) && good;
  }
  return good;
}

} // namespace

int main() {
  const std::vector<Case> cases = {
      {"one key", 16, {{0, 0}}},
      {"uneven contexts, idle rows", 16, {{0, 199}, {1, 0}, {-1, 3}, {2, 63}, {3, 64}, {0, -1}, {1, 17}}},
      {"parts of two tiles", 7, {{0, 400}, {1, 127}, {2, 128}}, 2},
      {"window and sinks", 1, {{0, 299}, {1, 20}, {0, 150}}, 1, 150, true},
      {"a window of three", 16, {{0, 70}, {0, 1}}, 1, 3},
      {"sinks", 64, {{0, 90}, {0, 89}}, 1, 0, true},
  };
  bool good = meetsFaults();
  for (const Case &c : cases) good = run(c) && good;
  return good ? 0 : 1;
}
