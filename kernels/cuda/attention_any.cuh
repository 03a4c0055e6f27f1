// What attention of any widths shares: how the keys of a row are cut, and how warps and parts are put together. Who walks over keys is
// attention_any_mma.cu or attention_any_lanes.cu; the shape is compiled in (attention_any_shape.cuh).
//
// q [rows, heads * KEY], kv [slots, .. K heads * KEY .. V heads * VALUE ..] or the value inside the key, out [rows, heads * VALUE].
// Grid: (rows, KV heads * tiles of HEADS query heads, parts at a time); 128 threads. A block takes the HEADS query heads of a KV head; its
// four warps walk 16 keys each of every 64.
//
// The number of parts follows from how many keys a row sees and from nothing else, parts are made one by one and put together in ascending
// order, so a row's bits depend on its own sequence only. With one block along z it folds part after part; else blocks take parts in turn, and
// the one that finishes last (a counter a row and tile of heads, put back to zero) reads them all. Both do the same roundings, and so do kernels
// that differ in ANY_ACCESS: where a compiler might fuse a product with an addition or not, fmaf or att::product says which.
#pragma once
#include "attention_any_shape.cuh"

namespace anywidth {

using att::Batch;

// Writes columns `column` to column + 3 of a head, those that there are: sums / total, with the head's sink joined.
template <class Element> ATT_DEVICE void finish(const Batch &b, Element *head, int column, float4 v, float most, float total, int number) {
  float scale = 1.f;
  if (b.sinks != nullptr) {
    const float sink = att::product(b.sinks[number], att::LOG2_E), top = fmaxf(most, sink);
    scale = att::power2(most - top);
    total = fmaf(total, scale, att::power2(sink - top));
  }
  scale /= total;
  v.x *= scale, v.y *= scale, v.z *= scale, v.w *= scale;
  if constexpr (STORE == 4) {
    putFour(head + column, v);
  } else {
    put(head + column, v.x);
    if (column + 1 < VALUE) put(head + column + 1, v.y);
    if (column + 2 < VALUE) put(head + column + 2, v.z);
    if (column + 3 < VALUE) put(head + column + 3, v.w);
  }
}

// What is put together so far and what joins it are multiplied by these.
struct Factors {
  float old, now;
};

// `most` and `total` take in a part that has keys: its maximum is finite.
ATT_DEVICE Factors join(float &most, float &total, float partMost, float partTotal) {
  const float top = fmaxf(most, partMost);
  const Factors f = {att::power2(most - top), att::power2(partMost - top)};
  total = fmaf(total, f.old, partTotal * f.now);
  most = top;
  return f;
}

ATT_DEVICE float4 joined(float4 sum, float4 part, Factors f) {
  return make_float4(fmaf(sum.x, f.old, part.x * f.now), fmaf(sum.y, f.old, part.y * f.now), fmaf(sum.z, f.old, part.z * f.now),
                     fmaf(sum.w, f.old, part.w * f.now));
}

constexpr int QUADS = (VALUE + 3) / 4; // groups of four columns of a head

// The block's four warps put together: four columns of a head with its maximum and total.
ATT_DEVICE float4 ofWarps(const float *sums, const float *warpMost, const float *warpTotal, int head, int column, float &most, float &total) {
  most = warpMost[head]; // finite: warp 0 has a key
#pragma unroll
  for (int v = 1; v < WARPS; v++) most = fmaxf(most, warpMost[v * HEADS + head]);
  float4 sum = make_float4(0.f, 0.f, 0.f, 0.f);
  total = 0.f;
#pragma unroll
  for (int v = 0; v < WARPS; v++) {
    const float weight = att::power2(warpMost[v * HEADS + head] - most);
    const float4 x = *reinterpret_cast<const float4 *>(sums + (v * HEADS + head) * SUM_STRIDE + column);
    sum.x = fmaf(weight, x.x, sum.x), sum.y = fmaf(weight, x.y, sum.y), sum.z = fmaf(weight, x.z, sum.z), sum.w = fmaf(weight, x.w, sum.w);
    total = fmaf(weight, warpTotal[v * HEADS + head], total);
  }
  return sum;
}

// Puts the parts of a row together that lie in memory, and writes the result. `factors`: shared memory, [2][parts][HEADS].
template <class Element>
ATT_DEVICE void mergeParts(const Batch &b, const float *all, int parts, float *factors, Element *out, int firstHead, int heads) {
  const int thread = threadIdx.x;
  const float *maxima = all + HEADS * COLUMNS, *totals = maxima + HEADS;
  float *old = factors, *now = factors + parts * HEADS;
  for (int i = thread; i < parts * HEADS; i += THREADS) {
    const long long at = (long long)(i / HEADS) * PART_FLOATS + i % HEADS;
    if (i % HEADS < heads) old[i] = att::loadPastL1(maxima + at), now[i] = att::loadPastL1(totals + at);
  }
  att::blockBarrier();
  // In place: maxima and totals become factors. Those of the last part are followed by the row's own.
  __shared__ float rowMost[HEADS], rowTotal[HEADS];
  if (thread < heads) {
    float most = ATT_NOTHING, total = 0.f;
    for (int p = 0; p < parts; p++) {
      const Factors f = join(most, total, old[p * HEADS + thread], now[p * HEADS + thread]);
      old[p * HEADS + thread] = f.old, now[p * HEADS + thread] = f.now;
    }
    rowMost[thread] = most, rowTotal[thread] = total;
  }
  att::blockBarrier();
  for (int i = thread; i < heads * QUADS; i += THREADS) {
    const int head = i / QUADS, column = i % QUADS * 4;
    const float *from = all + head * COLUMNS + column;
    float4 sum = make_float4(0.f, 0.f, 0.f, 0.f);
    for (int first = 0; first < parts; first += 8) {
      float4 x[8];
#pragma unroll
      for (int k = 0; k < 8; k++)
        x[k] = att::loadPastL1(reinterpret_cast<const float4 *>(from + (long long)min(first + k, parts - 1) * PART_FLOATS));
#pragma unroll
      for (int k = 0; k < 8; k++) {
        const int p = first + k;
        if (p < parts) sum = joined(sum, x[k], {old[p * HEADS + head], now[p * HEADS + head]});
      }
    }
    finish(b, out + head * VALUE, column, sum, rowMost[head], rowTotal[head], firstHead + head);
  }
}

// A row and tile of heads. Walk: Element, BYTES of shared memory; ask(query, heads) reads the query; over(...) walks over keys from nothing;
// put(...) writes the warp's sums, maxima and totals, those of `heads` heads.
template <class Walk> ATT_DEVICE void attend(const Batch &b) {
  using Element = typename Walk::Element;
  ATT_DYNAMIC_SHARED(shared);
  __shared__ int lastOfAll;
  float *sums = reinterpret_cast<float *>(shared);          // [WARPS][HEADS][SUM_STRIDE]
  float *warpMost = sums + WARPS * HEADS * SUM_STRIDE;      // [WARPS][HEADS]
  float *warpTotal = warpMost + WARPS * HEADS;              // [WARPS][HEADS]
  float *folded = reinterpret_cast<float *>(shared + Memory<Walk::BYTES>::FOLDED_AT); // [HEADS][COLUMNS]
  float *foldedMost = folded + HEADS * COLUMNS, *foldedTotal = foldedMost + 2 * HEADS; // [2][HEADS], by the parity of the part
  const int thread = threadIdx.x, warp = thread >> 5, lane = thread & 31;

  const int headTiles = (b.groupHeads + HEADS - 1) / HEADS;
  const int kvHead = blockIdx.y / headTiles, firstHead = kvHead * b.groupHeads + (blockIdx.y % headTiles) * HEADS;
  const int heads = min(HEADS, (kvHead + 1) * b.groupHeads - firstHead);
  const int row = blockIdx.x;
  const int sequence = b.rowSequence[(long long)row * b.rowSequenceStride], position = b.positions[(long long)row * b.positionStride];
  Element *out = reinterpret_cast<Element *>(b.out) + (long long)row * b.outStride + firstHead * VALUE;
  if (sequence < 0 || position < 0) {
    if (blockIdx.z == 0)
      for (int i = thread; i < heads * VALUE; i += THREADS) out[i] = 0;
    return;
  }
  const int start = position - b.window + 1 > 0 ? position - b.window + 1 : 0;
  const int tiles = (position + 1 - start + TILE - 1) / TILE;
  const int tilesAPart = max(b.minTiles, (tiles + MOST_PARTS - 1) / MOST_PARTS);
  const int parts = (tiles + tilesAPart - 1) / tilesAPart;
  // Memory is for as many parts as the page table has positions for; a position beyond it is a fault, met below.
  const bool fold = gridDim.z == 1 || parts > b.splits;
  const int makers = fold ? 1 : min((int)gridDim.z, parts);
  if ((int)blockIdx.z >= makers) return;

  Walk walk;
  walk.ask(reinterpret_cast<const Element *>(b.q) + (long long)row * b.qStride + (long long)firstHead * KEY, heads, lane);
  const long long pair = (long long)row * gridDim.y + blockIdx.y;
  float *all = b.partials + pair * b.splits * PART_FLOATS;
  for (int part = blockIdx.z; part < parts; part += makers) {
    const int from = start + part * tilesAPart * TILE, end = min(position + 1, from + tilesAPart * TILE);
    walk.over(b, sequence * b.tableStride, kvHead, from + warp * KEYS, end, shared, warp, lane);
    att::blockBarrier(); // the walk's memory is read
    walk.put(sums + warp * HEADS * SUM_STRIDE, warpMost + warp * HEADS, warpTotal + warp * HEADS, heads, lane);
    att::blockBarrier();
    const int turn = part & 1;
    for (int i = thread; i < heads * QUADS; i += THREADS) {
      const int head = i / QUADS, column = i % QUADS * 4;
      float most, total;
      float4 sum = ofWarps(sums, warpMost, warpTotal, head, column, most, total);
      if (fold) {
        float4 *here = reinterpret_cast<float4 *>(folded + head * COLUMNS + column);
        if (part > 0) {
          float allMost = foldedMost[turn * HEADS + head], allTotal = foldedTotal[turn * HEADS + head];
          sum = joined(*here, sum, join(allMost, allTotal, most, total));
          most = allMost, total = allTotal;
        }
        if (part == parts - 1) {
          finish(b, out + head * VALUE, column, sum, most, total, firstHead + head);
        } else {
          *here = sum;
          if (column == 0) foldedMost[(turn ^ 1) * HEADS + head] = most, foldedTotal[(turn ^ 1) * HEADS + head] = total;
        }
      } else if (parts == 1) {
        finish(b, out + head * VALUE, column, sum, most, total, firstHead + head);
      } else {
        float *to = all + (long long)part * PART_FLOATS;
        *reinterpret_cast<float4 *>(to + head * COLUMNS + column) = sum;
        if (column == 0) to[HEADS * COLUMNS + head] = most, to[HEADS * COLUMNS + HEADS + head] = total;
      }
    }
    att::blockBarrier(); // sums are read, parts are written
  }
  if (fold || parts == 1) return;
  if (thread == 0) {
    att::fence();
    const int done = att::addOne(b.counters + pair);
    lastOfAll = done == makers - 1;
    if (lastOfAll) b.counters[pair] = 0;
    att::fence();
  }
  att::blockBarrier();
  if (lastOfAll) mergeParts(b, all, parts, sums, out, firstHead, heads);
}

} // namespace anywidth
