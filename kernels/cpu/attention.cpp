// Causal attention over paged KV, for grouped heads (GQA) and for the absorbed form of MLA (one KV head).
//
// Shapes: q [rows, heads * qkWidth], slots of kv hold kvHeads keys and kvHeads values, out [rows, heads * vWidth].
// Arithmetic of one (row, head), the same whatever is computed beside it: KV positions are taken in blocks of 64
// absolute positions, ascending. A score is a dot product in lanes (chains over the width, then one fixed tree). Per
// block: m' = max(m, block maximum), l = l * e^(m - m') + sum of e^(s - m') in a fixed order over 64 lanes, then
// acc = acc * e^(m - m') and a chain of fma over the block's positions in ascending order. Positions a row must not see
// take no part. So chunking, page size, batch and freed pages before a window never change a bit.
// Algorithm: consecutive rows of one sequence form a tile; for each block its slots are looked up once; keys and values
// are then shared by QT queries (heads of a group, and rows) held in registers. The next block is prefetched meanwhile.
// Tried (same Xeon; 32 heads, 4 KV heads, width 128; prompt of 256 after 256 | one token after 4095): accumulators of the
// value sums left in memory by g++ 12, 49.5 ms | 3.0 ms; in a function of their own and memory on cache lines,
// 21.7 | 2.2; next block prefetched between the sums, 20.4 | 1.8; prefetched in one burst no better; in the order of
// memory instead of by head no better. A transposed key block would spare the lane sums (a third of a score's time at
// width 128) but costs more than it saves for single tokens, and one arithmetic must serve both.
// Slots whose stride is a multiple of 4 KiB share few cache sets: 16 elements of padding gain 10%.
#include "kernels.h"
#include "simd.h"

namespace sy {
namespace SY_ISA {
namespace {

#if defined(__AVX512F__) || defined(__aarch64__)
enum { QT_MAX = 4 };
#else
enum { QT_MAX = 2 };
#endif

// A block as the rows of a tile see it.
struct Block {
  const float *key[KV_BLOCK], *value[KV_BLOCK]; // of KV head 0; valid in [first, end)
  int first, end;
  const Block *next; // its lines are prefetched while this block is computed; null for the last one
};


// What one query may see of the block: positions [from, to).
struct Query {
  const float *q;
  float *scores, *acc, *factor;
  int from, to;
};

// Scores of Q queries at positions [from, to) of the block, J positions at a time (the last ones may be repeated).
// `ahead`: keys of the next block to fetch meanwhile, or null.
template <int Q, int J> SY_INLINE void scoresOf(const Query *query, const float *const *key, const float *const *ahead, i64 offset, i64 width, int from, int to) {
  for (int j = from; j < to; j += J) {
    const float *k[J];
    V s[Q][J];
    if (ahead)
      for (int i = j; i < j + J && i < KV_BLOCK; i++)
        for (i64 d = 0; d < width; d += 16) __builtin_prefetch(ahead[i] + offset + d, 0, 2);
#pragma GCC unroll 8
    for (int i = 0; i < J; i++) k[i] = key[j + i < to ? j + i : to - 1] + offset;
#pragma GCC unroll 4
    for (int q = 0; q < Q; q++)
#pragma GCC unroll 8
      for (int i = 0; i < J; i++) s[q][i] = zero();
    i64 d = 0;
    for (; d + W <= width; d += W) {
      V kv[J];
#pragma GCC unroll 8
      for (int i = 0; i < J; i++) kv[i] = load(k[i] + d);
#pragma GCC unroll 4
      for (int q = 0; q < Q; q++) {
        V qv = load(query[q].q + d);
#pragma GCC unroll 8
        for (int i = 0; i < J; i++) {
          s[q][i] = fma(qv, kv[i], s[q][i]);
          SY_PIN(s[q][i]);
        }
      }
    }
    if (d < width)
#pragma GCC unroll 4
      for (int q = 0; q < Q; q++) {
        V qv = loadPart(query[q].q + d, width - d);
#pragma GCC unroll 8
        for (int i = 0; i < J; i++) s[q][i] = fma(qv, loadPart(k[i] + d, width - d), s[q][i]);
      }
    // KV_BLOCK + 8 scores are allocated a query, so the repeated positions may be written.
#pragma GCC unroll 4
    for (int q = 0; q < Q; q++)
#pragma GCC unroll 2
      for (int i = 0; i < J; i += 4) sumLanes4(s[q][i], s[q][i + 1], s[q][i + 2], s[q][i + 3], query[q].scores + j + i);
  }
}

// Turns a query's scores into weights e^(s * scale - m') and moves its running maximum and sum.
SY_INLINE void softmaxStep(const Query &query, float scale, float *top, float *sum) {
  float *s = query.scores;
  const V sc = splat(scale), nothing = splat(-__builtin_inff());
  for (int j = 0; j < query.from; j++) s[j] = -__builtin_inff();
  for (int j = query.to; j < KV_BLOCK; j++) s[j] = -__builtin_inff();
  V best = nothing;
  for (int j = 0; j < KV_BLOCK; j += W) best = maxOf(best, load(s + j) * sc);
  float m = maxLanes(best);
  if (!(m > *top)) m = *top;
  V shift = splat(m), total = zero();
  for (int j = 0; j < KV_BLOCK; j += W) {
    V e = vexp(load(s + j) * sc - shift);
    store(s + j, e);
    total = total + e;
  }
  V f = vexp(splat(*top - m));
  *query.factor = f[0];
  *sum = fma1(*sum, f[0], sumLanes(total));
  *top = m;
}

// acc += weights * values for Q queries over positions [from, to), N vectors of the value width at a time.
// Its own function: inlined into a larger one, g++ 12 keeps `acc` in memory (5x slower).
template <int Q, int N> __attribute__((noinline)) void valuesChunk(const Query *query, const float *const *value, const float *const *ahead, i64 offset, int from, int to) {
  V acc[Q][N];
#pragma GCC unroll 4
  for (int q = 0; q < Q; q++)
#pragma GCC unroll 8
    for (int v = 0; v < N; v++) acc[q][v] = load(query[q].acc + offset + v * W);
  for (int j = from; j < to; j++) {
    const float *p = value[j] + offset;
    V x[N];
    if (ahead)
#pragma GCC unroll 8
      for (int v = 0; v < N; v += NV) __builtin_prefetch(ahead[j] + offset + v * W, 0, 2);
#pragma GCC unroll 8
    for (int v = 0; v < N; v++) x[v] = load(p + v * W);
#pragma GCC unroll 4
    for (int q = 0; q < Q; q++) {
      V w = splat(query[q].scores[j]);
#pragma GCC unroll 8
      for (int v = 0; v < N; v++) {
        acc[q][v] = fma(w, x[v], acc[q][v]);
        SY_PIN(acc[q][v]);
      }
    }
  }
#pragma GCC unroll 4
  for (int q = 0; q < Q; q++)
#pragma GCC unroll 8
    for (int v = 0; v < N; v++) store(query[q].acc + offset + v * W, acc[q][v]);
}

template <int Q> SY_INLINE void valuesOf(const Query *query, const float *const *value, const float *const *next, i64 headOffset, i64 width, int from, int to) {
  if (from >= to) return;
  const float *shifted[KV_BLOCK], *shiftedNext[KV_BLOCK], *const *ahead = nullptr;
  for (int j = from; j < to; j++) shifted[j] = value[j] + headOffset;
  if (next) {
    for (int j = from; j < to; j++) shiftedNext[j] = next[j] + headOffset;
    ahead = shiftedNext;
  }
  i64 d = 0;
  if (Q == 1)
    for (; d + 8 * W <= width; d += 8 * W) valuesChunk<Q, Q == 1 ? 8 : 1>(query, shifted, ahead, d, from, to);
  for (; d + 4 * W <= width; d += 4 * W) valuesChunk<Q, 4>(query, shifted, ahead, d, from, to);
  for (; d + W <= width; d += W) valuesChunk<Q, 1>(query, shifted, ahead, d, from, to);
  if (d < width)
    for (int q = 0; q < Q; q++) {
      V acc = loadPart(query[q].acc + d, width - d);
      for (int j = from; j < to; j++) acc = fma(splat(query[q].scores[j]), loadPart(shifted[j] + d, width - d), acc);
      storePart(query[q].acc + d, acc, width - d);
    }
}

template <int Q> __attribute__((noinline)) void scoresTile(const Query *query, const Block &block, const float *const *ahead, i64 offset, i64 width) {
  int from = query[0].from, to = query[0].to;
  for (int q = 1; q < Q; q++) {
    if (query[q].from < from) from = query[q].from;
    if (query[q].to > to) to = query[q].to;
  }
  scoresOf<Q, (Q == 1 ? 8 : 4)>(query, block.key, ahead, offset, width, from, to);
}

template <int Q> __attribute__((noinline)) void valuesTile(const Query *query, const Block &block, const float *const *ahead, i64 offset, i64 width) {
  int from = query[0].from, to = query[0].to;
  for (int q = 0; q < Q; q++) {
    if (query[q].from > from) from = query[q].from;
    if (query[q].to < to) to = query[q].to;
    float f = *query[q].factor;
    if (f != 1.f) {
      V scale = splat(f);
      float *acc = query[q].acc;
      eachVector(width, [&](i64 i, i64 n) { storeN(acc + i, loadN(acc + i, n) * scale, n); });
    }
  }
  if (from >= to) { // rows of the tile that share nothing
    for (int q = 0; q < Q; q++) valuesOf<1>(query + q, block.value, nullptr, offset, width, query[q].from, query[q].to);
    return;
  }
  for (int q = 0; q < Q; q++) valuesOf<1>(query + q, block.value, nullptr, offset, width, query[q].from, from);
  valuesOf<Q>(query, block.value, ahead, offset, width, from, to);
  for (int q = 0; q < Q; q++) valuesOf<1>(query + q, block.value, nullptr, offset, width, to, query[q].to);
}

// All queries of one KV head: scores, softmax, values.
void headBlock(const AttentionArgs &a, const Block &block, Query *query, i64 n, i64 kvHead, float *const *top, float *const *sum) {
#define SY_TILES(CALL) \
  for (i64 i = 0; i < n;) { \
    i64 left = n - i; \
    if (QT_MAX >= 4 && left >= 4) { CALL(QT_MAX >= 4 ? 4 : 1); i += 4; } \
    else if (left >= 2) { CALL(2); i += 2; } \
    else { CALL(1); i += 1; } \
  }
#define SY_SCORES(Q) scoresTile<Q>(query + i, block, i == 0 ? keysAhead : nullptr, kvHead * a.qkWidth, a.qkWidth)
#define SY_VALUES(Q) valuesTile<Q>(query + i, block, i == 0 ? valuesAhead : nullptr, kvHead * a.vWidth, a.vWidth)
  // Only the first tile of queries fetches: the others find the lines on their way.
  const float *const *keysAhead = block.next ? block.next->key : nullptr;
  const float *const *valuesAhead = block.next && a.keyOffset != a.valueOffset ? block.next->value : nullptr;
  SY_TILES(SY_SCORES)
  for (i64 i = 0; i < n; i++) softmaxStep(query[i], a.scale, top[i], sum[i]);
  SY_TILES(SY_VALUES)
}

// Where positions [start, last] of the block at `base` lie.
int lookUp(const AttentionArgs &a, i64 table, i64 base, i64 start, i64 last, Block &block) {
  block.first = (int)(start > base ? start - base : 0);
  block.end = (int)(last - base + 1 < KV_BLOCK ? last - base + 1 : KV_BLOCK);
  i64 page = -1, inPage = 0, slotBase = 0;
  for (int j = block.first; j < block.end; j++, inPage++) {
    if (page < 0 || inPage == a.pageSize) {
      i64 p = base + j;
      page = p / a.pageSize;
      inPage = p % a.pageSize;
      slotBase = (i64)a.pageTable[table + page] * a.pageSize;
      if (slotBase < 0) return INDEX_OUT_OF_RANGE;
    }
    i64 slot = slotBase + inPage;
    if (slot >= a.kv.capacity) return INDEX_OUT_OF_RANGE;
    block.key[j] = a.kv.row(slot) + a.keyOffset;
    block.value[j] = a.kv.row(slot) + a.valueOffset;
  }
  // The rest is only ever prefetched.
  for (int j = 0; j < KV_BLOCK; j++)
    if (j < block.first || j >= block.end) {
      block.key[j] = block.key[block.first];
      block.value[j] = block.value[block.first];
    }
  return OK;
}

// `n` rows of one sequence at positions position .. position + n - 1.
int rowTile(const AttentionArgs &a, i64 row, i64 n, i64 sequence, i64 position) {
  i64 heads = a.heads, start = a.window && position >= a.window ? position - a.window + 1 : 0, last = position + n - 1;
  i64 table = sequence * a.pageTableStride;
  if (table + last / a.pageSize >= a.pageTableLength) return INDEX_OUT_OF_RANGE;
  memset(a.acc, 0, n * heads * a.vWidth * sizeof(float));
  for (i64 i = 0; i < n * heads; i++) {
    a.top[i] = -__builtin_inff();
    a.sum[i] = 0;
  }
  Block blocks[2];
  int current = 0;
  blocks[0].next = nullptr;
  if (int status = lookUp(a, table, start / KV_BLOCK * KV_BLOCK, start, last, blocks[0])) return status;
  for (i64 base = start / KV_BLOCK * KV_BLOCK; base <= last; base += KV_BLOCK) {
    const Block &block = blocks[current];
    Block &following = blocks[current ^= 1];
    following.next = nullptr;
    if (base + KV_BLOCK <= last) {
      if (int status = lookUp(a, table, base + KV_BLOCK, start, last, following)) return status;
      blocks[current ^ 1].next = &following;
    }
    for (i64 kvHead = 0; kvHead < a.kvHeads; kvHead++) {
      // Heads h with floor(h * kvHeads / heads) = kvHead.
      i64 h0 = (kvHead * heads + a.kvHeads - 1) / a.kvHeads, h1 = ((kvHead + 1) * heads + a.kvHeads - 1) / a.kvHeads;
      enum { MOST = 64 };
      Query query[MOST];
      float *top[MOST], *sum[MOST];
      i64 count = 0;
      for (i64 i = 0; i < n; i++) {
        i64 p = position + i, from = a.window && p >= a.window ? p - a.window + 1 : 0, to = p + 1;
        if (to <= base || from >= base + KV_BLOCK) continue;
        from = from > base ? from - base : 0;
        to = to - base < KV_BLOCK ? to - base : KV_BLOCK;
        for (i64 h = h0; h < h1; h++) {
          i64 at = i * heads + h;
          query[count] = {a.q.row(row + i) + h * a.qkWidth, a.scores + count * (KV_BLOCK + 8), a.acc + at * a.vWidth,
                          a.factor + count, (int)from, (int)to};
          top[count] = a.top + at;
          sum[count] = a.sum + at;
          if (++count == MOST) {
            headBlock(a, block, query, count, kvHead, top, sum);
            count = 0;
          }
        }
      }
      if (count) headBlock(a, block, query, count, kvHead, top, sum);
    }
  }
  for (i64 i = 0; i < n; i++)
    for (i64 h = 0; h < heads; h++) {
      i64 at = i * heads + h;
      float m = a.top[at], factor = 1, sum = a.sum[at];
      if (a.sinks) {
        float sink = a.sinks[h], to = sink > m ? sink : m;
        V e = vexp(splat(m - to)), s = vexp(splat(sink - to));
        factor = e[0];
        sum = fma1(sum, factor, s[0]);
      }
      V scale = splat(factor / sum);
      const float *acc = a.acc + at * a.vWidth;
      float *out = a.out.row(row + i) + h * a.vWidth;
      eachVector(a.vWidth, [&](i64 c, i64 m2) { storeN(out + c, loadN(acc + c, m2) * scale, m2); });
    }
  return OK;
}

} // namespace

int attention(const AttentionArgs &a, i64 rows) {
  for (i64 row = 0; row < rows;) {
    i64 sequence = a.rowSequence.at(row), position = a.positions.at(row);
    if (sequence < 0 || position < 0) { // a row of padding
      memset(a.out.row(row), 0, a.heads * a.vWidth * sizeof(float));
      row++;
      continue;
    }
    i64 n = 1;
    while (n < a.tileRows && row + n < rows && a.rowSequence.at(row + n) == sequence && a.positions.at(row + n) == position + n) n++;
    int status = rowTile(a, row, n, sequence, position);
    if (status) return status;
    row += n;
  }
  return OK;
}

} // namespace SY_ISA
} // namespace sy
