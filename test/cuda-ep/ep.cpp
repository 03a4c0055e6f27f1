// Expert parallelism between emulated GPUs, against plain loops: random groups, routes, sizes and paces. Prints "ok" a case, "FAIL".
#include "ep_normal_sm90.cu"
#include "ep_slots_sm90.cu"
#include "ep_back_sm90.cu"

namespace {

struct Case {
  int size, top_k, hidden, slots, rows;
  std::vector<int> experts, tokens;
  bool fp8, f32;
  unsigned dead = 99;
};

int first_of(const Case &c, int m) {
  int at = 0;
  for (int i = 0; i < m; i++) at += c.experts[i];
  return at;
}

[[noreturn]] void fail(const char *what, int a = 0, int b = 0, int d = 0) {
  std::printf("FAIL %s %d %d %d\n", what, a, b, d);
  std::exit(1);
}
void expect(bool holds, const char *what, int a = 0, int b = 0, int d = 0) {
  if (!holds) fail(what, a, b, d);
}

struct Rank {
  Group group{};
  std::vector<char> region;
  std::vector<u32> state = std::vector<u32>(16), fault = std::vector<u32>(8);
  std::vector<u8> member_of;
  std::vector<int> ids;
  std::vector<float> weights;
  std::vector<bf16> x, out, to;
  std::vector<int4> tiles;
  int tile_count = -1;
};

struct Node {
  Case c;
  std::vector<Rank> ranks;
  int experts = 0, all_slots = 0, wire = 0;

  explicit Node(const Case &given, std::mt19937 &random) : c(given) {
    for (int n : c.experts) experts += n;
    int locals = *std::max_element(c.experts.begin(), c.experts.end());
    all_slots = c.size * c.slots;
    wire = c.fp8 ? (c.hidden + (c.hidden + 127) / 128 * 4 + 63) / 64 * 64 : (c.hidden * 2 + 63) / 64 * 64;
    const int back = (c.hidden * 2 + 63) / 64 * 64, most = *std::max_element(c.tokens.begin(), c.tokens.end());
    i64 at[AREAS][2], end = 0;
    const i64 K = c.top_k, R = c.rows, S = all_slots;
    const i64 bytes[AREAS] = {8 * c.size * (c.size + locals), 4 * c.size, 4 * c.size, 4 * R * K, 4 * R * K, 4 * R, 4 * R, R * wire, R * back,
                              4 * most * c.size, 4 * (EXPERTS + 3 * locals), 4 * R * K, S * wire, 4 * S * K, 4 * S * K, 4 * S, 4 * S,
                              8 * c.size, 4 * c.size, (i64)std::max(c.size, c.top_k) * c.slots * back, 4 * (i64)std::max(c.size, c.top_k) * c.slots * 4,
                              4 * c.slots * c.size, 4 * (c.size + locals + 2 * locals * c.size), 4 * locals * S, 4 * S * K, 8 * S * ((K + 1) / 2 + K + 1), 4 * c.size};
    for (int a = 0; a < AREAS; a++)
      for (int p = 0; p < 2; p++) at[a][p] = end, end = (end + bytes[a] + 255) / 256 * 256;
    ranks.resize(c.size);
    for (int m = 0; m < c.size; m++) {
      Rank &r = ranks[m];
      r.region.assign(end + 256, 0);
      r.member_of.resize(experts);
      for (int e = 0, d = 0; e < experts; e++) {
        while (first_of(c, d + 1) <= e) d++;
        r.member_of[e] = (u8)d;
      }
      const int n = c.tokens[m];
      r.ids.resize(n * K);
      r.weights.resize(n * K);
      r.x.resize(n * c.hidden + 64);
      r.out.resize(n * c.hidden + 64);
      r.to.resize((R * K + experts * 128) * c.hidden);
      for (int t = 0; t < n; t++) {
        std::vector<int> free(experts);
        for (int e = 0; e < experts; e++) free[e] = e;
        std::shuffle(free.begin(), free.end(), random);
        for (int k = 0; k < K; k++) {
          r.ids[t * K + k] = random() % 5 == 0 ? -1 : free[k];
          r.weights[t * K + k] = std::ldexp(1.0f, -(int)(random() % 4));
        }
        for (int i = 0; i < c.hidden; i++) r.x[t * c.hidden + i] = to_bf16((float)((int)(random() % 250) - 125));
      }
    }
    for (int m = 0; m < c.size; m++) {
      Group &g = ranks[m].group;
      for (int d = 0; d < c.size; d++) g.base[d] = (u64)(((u64)ranks[d].region.data() + 255) & ~255ull);
      for (int d = 0; d <= c.size; d++) g.first_expert[d] = first_of(c, d);
      g.size = c.size, g.member = m, g.top_k = K, g.experts = experts, g.tokens = most, g.rows = R, g.slots = c.slots, g.count_stride = c.size + locals;
      g.active = (1ull << c.size) - 1;
      if (c.dead < 32) g.active &= ~(1ull << c.dead);
      g.timeout_ns = 1ll << 50;
      g.fault = (u64)ranks[m].fault.data(), g.state = (u64)ranks[m].state.data(), g.member_of = (u64)ranks[m].member_of.data();
      g.row_stride = wire, g.slot_stride = wire, g.partial_stride = back, g.back_stride = back;
      std::memcpy(g.at, at, sizeof at);
    }
  }

  bool lives(int m) const { return (unsigned)m != c.dead; }
  template <class F> void each(std::mt19937 &random, F &&add) {
    machine::Machine machine;
    for (int m = 0; m < c.size; m++)
      if (lives(m)) add(machine, m);
    machine::run(machine, random());
  }
  bool here(int e, int m) const { return e >= first_of(c, m) && e < first_of(c, m + 1); }
  bool goes(int s, int t, int m) const {
    for (int k = 0; k < c.top_k; k++)
      if (here(ranks[s].ids[t * c.top_k + k], m)) return lives(m) && lives(s);
    return false;
  }
  /// What bf16 row a received wire row says.
  void check_row(const char *found, int s, int t, const char *what) const {
    const bf16 *x = &ranks[s].x[t * c.hidden];
    if (!c.fp8) {
      expect(std::memcmp(found, x, c.hidden * 2) == 0, what, s, t);
      return;
    }
    for (int b = 0; b < c.hidden; b += 128) {
      float top = 1e-4f;
      const int end = std::min(c.hidden, b + 128);
      for (int i = b; i < end; i++) top = std::max(top, std::fabs(to_float(x[i])));
      float scale;
      std::memcpy(&scale, found + c.hidden + b / 128 * 4, 4);
      expect(scale == top / 448.0f, what, s, t, b);
      for (int i = b; i < end; i++) expect((u8)found[i] == (pack_e4m3(to_float(x[i]) * (448.0f / top), 0) & 0xff), what, s, t, i);
    }
  }
  void check_meta(int s, int t, int m, const int *ids, const float *weights, int token, const char *what) const {
    expect(token == t, what, s, t, token);
    for (int k = 0; k < c.top_k; k++) {
      const int e = ranks[s].ids[t * c.top_k + k];
      expect(ids[k] == (here(e, m) ? e - first_of(c, m) : -1), what, s, t, k);
      expect(weights[k] == (here(e, m) ? ranks[s].weights[t * c.top_k + k] : 0.0f), what, s, t, k);
    }
  }
  /// Members ascending: partial sums rounded to bf16 (but the own one where `exact_own`), added.
  void check_out(int r, float times, bool exact_own, const char *what) const {
    for (int t = 0; t < c.tokens[r]; t++)
      for (int i = 0; i < c.hidden; i++) {
        float sum = 0;
        for (int m = 0; m < c.size; m++) {
          if (!goes(r, t, m)) continue;
          float part = 0;
          for (int k = 0; k < c.top_k; k++)
            if (here(ranks[r].ids[t * c.top_k + k], m)) part += ranks[r].weights[t * c.top_k + k] * to_float(ranks[r].x[t * c.hidden + i]) * times;
          sum += exact_own && m == r ? part : to_float(to_bf16(part));
        }
        expect(to_float(ranks[r].out[t * c.hidden + i]) == to_float(to_bf16(sum)), what, r, t, i);
      }
  }
};

void normal(Node &n, std::mt19937 &random, int parity, bool expand) {
  const Case &c = n.c;
  const int K = c.top_k, alignment = expand ? 4 : 1;
  const unsigned blocks = 1 + random() % 3, threads = 32 * (1 + random() % 3);
  n.each(random, [&](machine::Machine &machine, int m) {
    Rank &r = n.ranks[m];
    const int tokens = c.tokens[m];
    const size_t shared = 4 * (tokens + c.size * ((tokens + 31) / 32) + n.experts + c.size * n.ranks[m].group.count_stride) + n.experts;
    // A tile an expert, and one more for every 16 pairs.
    r.tiles.assign(n.experts + c.rows * K / 16 + 1, int4{-7, 0, 0, 0});
    machine::launch(machine, 1, threads, shared, [&r, parity, K, tokens, alignment] {
      ep_notify(&r.group, parity, r.ids.data(), K, tokens, alignment, r.tiles.data(), &r.tile_count, 16);
    });
  });
  n.each(random, [&](machine::Machine &machine, int m) {
    Rank &r = n.ranks[m];
    const int tokens = c.tokens[m], hidden = c.hidden;
    const int pieces = c.fp8 ? hidden / 16 : hidden / 8, senders = c.size == 1 ? 0 : 1;
    machine::launch(machine, blocks, threads, 4 * (threads / 32) * ((hidden / 16 + 7) / 8), [&r, &c, parity, K, tokens, hidden, pieces, expand, senders] {
      if (expand)
        ep_dispatch_expand(&r.group, parity, (const char *)r.x.data(), hidden * 2, pieces, r.ids.data(), K, r.weights.data(), K, tokens, senders,
                           (char *)r.to.data(), hidden * 2, (int)(r.to.size() / hidden));
      else if (c.fp8)
        ep_dispatch_fp8_bf16(&r.group, parity, r.x.data(), hidden, pieces, 0, r.ids.data(), K, r.weights.data(), K, tokens);
      else
        ep_dispatch_copy(&r.group, parity, (const char *)r.x.data(), hidden * 2, pieces, r.ids.data(), K, r.weights.data(), K, tokens);
    });
  });
  for (int m = 0; m < c.size; m++) {
    if (!n.lives(m)) continue;
    const Group *g = &n.ranks[m].group;
    const int *info = mine<int>(g, INFO, parity);
    const int *ids = mine<int>(g, IDS, parity), *tokens = mine<int>(g, TOKENS, parity), *places = mine<int>(g, PLACES, parity);
    const float *weights = mine<float>(g, WEIGHTS, parity);
    int row = 0;
    std::vector<int> pairs(c.experts[m]), taken(n.ranks[m].to.size() / c.hidden);
    for (int s = 0; s < c.size; s++) {
      expect(info[SOURCE_START + s] == row, "source start", m, s, row);
      for (int t = 0; t < c.tokens[s]; t++) {
        if (!n.goes(s, t, m)) continue;
        n.check_meta(s, t, m, ids + row * K, weights + row * K, tokens[row], "meta");
        if (!expand || s != m) n.check_row(mine<char>(g, ROWS, parity) + (i64)row * n.wire, s, t, "row");
        for (int k = 0; k < K; k++) {
          const int e = ids[row * K + k];
          if (e >= 0) pairs[e]++;
          if (!expand) continue;
          const int place = places[row * K + k];
          expect((place >= 0) == (e >= 0), "place", m, row, k);
          if (place < 0) continue;
          expect(!taken[place]++, "place taken twice", m, row, place);
          const int start = info[EXPERTS + c.experts[m] + e];
          expect(place >= start && place < start + info[EXPERTS + e] && start % alignment == 0, "segment", place, start, e);
          n.check_row((const char *)&n.ranks[m].to[(i64)place * c.hidden], s, t, "expanded row");
        }
        row++;
      }
    }
    expect(info[RECEIVED] == row, "received", m, info[RECEIVED], row);
    int tile = 0;
    for (int e = 0; e < c.experts[m]; e++) {
      expect(info[EXPERTS + e] == pairs[e], "pairs", m, e);
      // Experts ascending; each one's rows once, in order.
      for (int at = 0; at < pairs[e]; tile++) {
        const int4 &t = n.ranks[m].tiles[tile];
        expect(t.x == e && t.y == info[EXPERTS + c.experts[m] + e] + at && t.z > 0 && t.z <= 16, "tile", m, e, at);
        at += t.z > 0 ? t.z : 16;
      }
    }
    expect(tile == n.ranks[m].tile_count, "tiles", m, tile, n.ranks[m].tile_count);
  }
  const bool local = expand && random() % 2;
  const float times = expand ? 1.0f : 2.0f;
  n.each(random, [&](machine::Machine &machine, int m) {
    Rank &r = n.ranks[m];
    const int hidden = c.hidden;
    if (expand) {
      machine::launch(machine, blocks, threads, 0, [&r, parity, hidden, local] { ep_reduce_bf16_bf16(&r.group, parity, r.to.data(), hidden, hidden, local); });
      return;
    }
    // Experts that double what they get.
    const Group *g = &r.group;
    int row = 0;
    for (int s = 0; s < c.size; s++)
      for (int t = 0; t < c.tokens[s]; t++) {
        if (!n.goes(s, t, m)) continue;
        bf16 *to = reinterpret_cast<bf16 *>(mine<char>(g, PARTIALS, parity) + (i64)row++ * g->partial_stride);
        for (int i = 0; i < hidden; i++) {
          float part = 0;
          for (int k = 0; k < K; k++)
            if (n.here(n.ranks[s].ids[t * K + k], m)) part += n.ranks[s].weights[t * K + k] * to_float(n.ranks[s].x[t * hidden + i]) * 2;
          to[i] = to_bf16(part);
        }
      }
  });
  n.each(random, [&](machine::Machine &machine, int m) {
    Rank &r = n.ranks[m];
    const int tokens = c.tokens[m], hidden = c.hidden;
    machine::launch(machine, blocks, threads, 0, [&r, parity, tokens, hidden, local] {
      if (local) ep_combine_local_bf16_bf16(&r.group, parity, r.out.data(), hidden, hidden, tokens, r.to.data(), hidden);
      else ep_combine_bf16_bf16(&r.group, parity, r.out.data(), hidden, hidden, tokens, nullptr, 0);
    });
  });
  for (int m = 0; m < c.size; m++)
    if (n.lives(m)) n.check_out(m, times, local, "combined");
}

size_t slots_shared(const Node &n, int tokens) {
  return 4 * (tokens + n.all_slots * ((n.c.top_k + 1) / 2) + n.c.size * ((n.c.slots + 31) / 32));
}

void low_latency(Node &n, std::mt19937 &random, int parity, bool origin) {
  const Case &c = n.c;
  const int K = c.top_k, hidden = c.hidden;
  const unsigned blocks = 1 + random() % 3, threads = 32 * (1 + random() % 3);
  const bool hook = random() % 2;
  const int parts = 1 + random() % 4;
  for (u32 phases : hook ? std::vector<u32>{1, 2} : std::vector<u32>{3})
    n.each(random, [&](machine::Machine &machine, int m) {
      Rank &r = n.ranks[m];
      const int tokens = c.tokens[m];
      machine::launch(machine, blocks, threads, slots_shared(n, tokens), [&r, &c, parity, K, tokens, hidden, phases] {
        u32 *epoch = r.state.data() + SLOT_EPOCH + parity, *done = mine<u32>(&r.group, SLOT_DONE, parity);
        if (c.fp8)
          ep_slots_fp8_bf16(&r.group, parity, phases, epoch, done, K, r.x.data(), hidden, hidden / 16, 0, r.ids.data(), K, r.weights.data(), K, tokens);
        else
          ep_slots_copy(&r.group, parity, phases, epoch, done, K, (const char *)r.x.data(), hidden * 2, hidden / 8, r.ids.data(), K, r.weights.data(), K, tokens);
      });
    });
  std::vector<std::vector<bf16>> y(c.size);
  for (int m = 0; m < c.size; m++) {
    if (!n.lives(m)) continue;
    const Group *g = &n.ranks[m].group;
    const int locals = c.experts[m], *info = mine<int>(g, SLOT_INFO, parity), *slot_of_row = mine<int>(g, SLOT_OF_ROW, parity);
    std::vector<std::pair<int, int>> source(n.all_slots, {-1, -1});
    for (int s = 0; s < c.size; s++) {
      int i = 0;
      for (int t = 0; t < c.tokens[s]; t++) {
        if (!n.goes(s, t, m)) continue;
        const int slot = s * c.slots + i++;
        n.check_meta(s, t, m, mine<int>(g, SLOT_IDS, parity) + slot * K, mine<float>(g, SLOT_WEIGHTS, parity) + slot * K, mine<int>(g, SLOT_TOKENS, parity)[slot], "slot meta");
        n.check_row(mine<char>(g, SLOTS, parity) + (i64)slot * n.wire, s, t, "slot row");
        source[slot] = {s, t};
      }
      expect(info[s] == i, "tokens of source", m, s, info[s]);
      for (; i < c.slots; i++)
        for (int k = 0; k < K; k++) expect(mine<int>(g, SLOT_IDS, parity)[(s * c.slots + i) * K + k] == -1, "empty slot", m, s, i);
    }
    y[m].resize((size_t)std::max(locals, 1) * n.all_slots * hidden);
    for (int e = 0; e < locals; e++) {
      int j = 0;
      for (int s = 0; s < c.size; s++) {
        const int begin = j;
        for (int i = 0; i < info[s]; i++) {
          const int slot = s * c.slots + i, *ids = mine<int>(g, SLOT_IDS, parity) + slot * K;
          if (std::find(ids, ids + K, e) == ids + K) continue;
          expect(slot_of_row[e * n.all_slots + j] == slot, "slot of row", m, e, j);
          for (int i2 = 0; i2 < hidden; i2++)
            y[m][((size_t)e * n.all_slots + j) * hidden + i2] = to_bf16(to_float(n.ranks[s].x[source[slot].second * hidden + i2]) * 2);
          j++;
        }
        expect(info[c.size + locals + (e * c.size + s) * 2] == begin && info[c.size + locals + (e * c.size + s) * 2 + 1] == j - begin, "range", m, e, s);
      }
      expect(info[c.size + e] == j, "rows of expert", m, e, j);
    }
  }
  for (u32 phases : hook ? std::vector<u32>{1, 2} : std::vector<u32>{3})
    n.each(random, [&](machine::Machine &machine, int m) {
      Rank &r = n.ranks[m];
      const int tokens = c.tokens[m];
      const bf16 *rows = y[m].data();
      machine::launch(machine, blocks, threads, 0, [&r, parity, parts, phases, origin, rows, hidden, K, tokens] {
        ep_back_bf16_bf16_bf16(&r.group, parity, phases, r.state.data() + SLOT_EPOCH + parity, origin ? 2 : 0, parts, rows, hidden, r.out.data(), hidden, hidden, r.ids.data(), K, r.weights.data(), K, tokens);
      });
    });
  for (int m = 0; m < c.size; m++) {
    if (!n.lives(m)) continue;
    if (!origin) {
      n.check_out(m, 2, false, "low-latency combined");
      continue;
    }
    for (int t = 0; t < c.tokens[m]; t++)
      for (int i = 0; i < hidden; i++) {
        float sum = 0;
        for (int k = 0; k < K; k++) {
          const int e = n.ranks[m].ids[t * K + k];
          if (e >= 0 && n.lives(n.ranks[m].member_of[e])) sum += n.ranks[m].weights[t * K + k] * to_float(n.ranks[m].x[t * hidden + i]) * 2;
        }
        expect(to_float(n.ranks[m].out[t * hidden + i]) == to_float(to_bf16(sum)), "combined at the origin", m, t, i);
      }
  }
}

/// A member that never comes: the others end, and say of whom they waited in vain.
void silent_member(std::mt19937 &random) {
  Case c{2, 2, 16, 3, 6, {2, 2}, {3, 3}, false, false};
  Node n(c, random);
  n.ranks[0].group.timeout_ns = 20000;
  machine::Machine machine;
  Rank &r = n.ranks[0];
  machine::launch(machine, 2, 32, 4096, [&r] {
    ep_slots_copy(&r.group, 0, 3, r.state.data() + SLOT_EPOCH, mine<u32>(&r.group, SLOT_DONE, 0), 2, (const char *)r.x.data(), 32, 2, r.ids.data(), 2, r.weights.data(), 2, 3);
  });
  machine::run(machine, random());
  expect(r.fault[0] == SLOT_COUNT && r.fault[1] == 1 && r.fault[3] == 1 && r.fault[4] == 0, "what was left of a silent member", r.fault[0], r.fault[1], r.fault[3]);
  std::printf("ok a silent member is named\n");
}

} // namespace

int main(int argc, char **argv) {
  const int cases = argc > 1 ? std::atoi(argv[1]) : 20;
  for (int i = 0; i < cases; i++) {
    std::mt19937 random(1000 + i);
    Case c;
    c.size = 1 + random() % 4;
    for (int m = 0; m < c.size; m++) c.experts.push_back(random() % 4 == 0 && m > 0 ? 0 : 1 + random() % 4), c.tokens.push_back(random() % 5 == 0 ? 0 : random() % 40);
    int experts = 0;
    for (int e : c.experts) experts += e;
    c.top_k = 1 + random() % std::min(8, experts);
    c.fp8 = random() % 2;
    c.f32 = false;
    c.hidden = 16 * (1 + random() % 20);
    c.slots = *std::max_element(c.tokens.begin(), c.tokens.end()) + 1 + random() % 3;
    c.rows = 0;
    for (int t : c.tokens) c.rows += t;
    c.rows = std::max(c.rows, 1);
    if (c.size > 2 && random() % 3 == 0) c.dead = random() % c.size;
    Node n(c, random);
    for (int call = 0; call < 4; call++) {
      const bool expand = !c.fp8 && random() % 2;
      if (random() % 2) normal(n, random, random() % 2, expand);
      else low_latency(n, random, random() % 2, random() % 3 == 0);
    }
    for (int m = 0; m < c.size; m++) expect(n.ranks[m].fault[0] == 0, "fault", m, n.ranks[m].fault[0]);
    std::printf("ok %d: %d members, hidden %d, %s\n", i, c.size, c.hidden, c.fp8 ? "fp8" : "bf16");
  }
  std::mt19937 random(7);
  silent_member(random);
}
