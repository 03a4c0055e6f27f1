// What all attention kernels are told, and where a position's row of the cache lies.
#pragma once
#include "attention_primitives.cuh"

namespace att {

// Arguments in the order of the launch (src/device/cuda/ops/attention.ts). Strides and offsets are in elements.
#define ATT_PARAMETERS                                                                                                   \
  att::bf16_bits *out, const att::bf16_bits *q, const att::bf16_bits *kv, const int *rowSequence, const int *positions,   \
      const int *pageTable, const int *plan, float *partials, int *counters, const float *sinks, int *faults, int rows, int outStride, \
      int qStride, int kvStride, int rowSequenceStride, int positionStride, int tableStride, int keyOffset,               \
      int valueOffset, int pageSize, int pageShift, int kvHeads, int groupHeads, int splits, int minTiles, int window,    \
      int capacity, int tableEntries, float scaleLog2
#define ATT_ARGUMENTS                                                                                                     \
  out, q, kv, rowSequence, positions, pageTable, plan, partials, counters, sinks, faults, rows, outStride, qStride, kvStride,     \
      rowSequenceStride, positionStride, tableStride, keyOffset, valueOffset, pageSize, pageShift, kvHeads, groupHeads,   \
      splits, minTiles, window, capacity, tableEntries, scaleLog2

constexpr int FAULT_PAGE = 4; // of elements.cuh
constexpr float LOG2_E = 1.4426950408889634f;
#define ATT_NOTHING (-__int_as_float(0x7f800000)) // minus infinity

struct Batch {
  bf16_bits *out;
  const bf16_bits *q, *kv;
  const int *rowSequence, *positions, *pageTable;
  // What attention_plan found: [0] single rows, [1] tiles, [4 ..) the single rows, then from 4 + rows pairs (first row, rows) of
  // tiles. 0: every row is taken as a single one.
  const int *plan;
  float *partials;
  int *counters;
  // One logit a query head that joins the sum only, or 0.
  const float *sinks;
  // See elements.cuh.
  int *faults;
  int rows, outStride, qStride, kvStride, rowSequenceStride, positionStride, tableStride, keyOffset, valueOffset;
  // pageShift is log2(pageSize), or -1 where that is no power of two.
  int pageSize, pageShift;
  int kvHeads;
  // Query heads of one KV head.
  int groupHeads;
  // Parts that the keys of a row may be cut into, and the fewest tiles of keys that a part takes.
  int splits, minTiles;
  // Positions a row sees, itself included; 2^30 without a window.
  int window;
  // Slots of the cache and entries of the page table.
  int capacity, tableEntries;
  // Scale of the scores times log2(e): exponentials are powers of two throughout.
  float scaleLog2;

  // The slot of a position, or -1 where the page table or the cache has none: then the fault word says so.
  ATT_DEVICE int slot(int pages, int position) const {
    const int page = pageShift >= 0 ? position >> pageShift : position / pageSize, entry = pages + page;
    const int at = entry < tableEntries ? pageTable[entry] : -1;
    const int s = at * pageSize + (position - page * pageSize);
    if ((unsigned)at < (unsigned)capacity && s < capacity) return s;
    if (atomicCAS(faults, 0, FAULT_PAGE) == 0) faults[1] = at < 0 ? page : at;
    return -1;
  }
};

// Writes four columns of a head: sums / total, with the head's sink joined.
ATT_DEVICE void finish(const Batch &b, bf16_bits *to, float4 v, float most, float total, int head) {
  float scale = 1.f;
  if (b.sinks != nullptr) {
    const float sink = b.sinks[head] * LOG2_E, top = fmaxf(most, sink);
    scale = power2(most - top);
    total = total * scale + power2(sink - top);
  }
  scale /= total;
  uint2 packed;
  packed.x = pack(v.x * scale, v.y * scale);
  packed.y = pack(v.z * scale, v.w * scale);
  *reinterpret_cast<uint2 *>(to) = packed;
}

// Four columns of a head put together from parts, one after another in ascending order.
struct Merged {
  float4 sum = make_float4(0.f, 0.f, 0.f, 0.f);
  float most = ATT_NOTHING, total = 0.f;

  // `partMost` is finite: a part has a key.
  ATT_DEVICE void add(float4 part, float partMost, float partTotal) {
    const float top = fmaxf(most, partMost), old = power2(most - top), now = power2(partMost - top);
    sum.x = sum.x * old + part.x * now, sum.y = sum.y * old + part.y * now;
    sum.z = sum.z * old + part.z * now, sum.w = sum.w * old + part.w * now;
    total = total * old + partTotal * now;
    most = top;
  }

  // Parts lie `stride` floats apart: four columns at `columns`, the maximum at `most`, the total at `total`. Eight parts are under
  // way at a time.
  ATT_DEVICE void addAll(const float *columns, const float *maxima, const float *totals, long long stride, int parts) {
    for (int first = 0; first < parts; first += 8) {
      float4 x[8];
      float m[8], l[8];
#pragma unroll
      for (int k = 0; k < 8; k++) {
        const long long at = min(first + k, parts - 1) * stride;
        x[k] = loadPastL1(reinterpret_cast<const float4 *>(columns + at));
        m[k] = loadPastL1(maxima + at);
        l[k] = loadPastL1(totals + at);
      }
#pragma unroll
      for (int k = 0; k < 8; k++)
        if (first + k < parts) add(x[k], m[k], l[k]);
    }
  }
};

} // namespace att
