// The shape that attention of any widths is compiled for (macros by src/device/cuda/ops/attention-any-layout.ts), what follows from it, and how
// rows of such widths are read and written.
#pragma once
#include "attention_batch.cuh"

// Without macros, as when all kernels are compiled for a test: the latent of models/demo.
#ifndef ANY_KEY
#define ANY_KEY 80
#define ANY_VALUE 64
#define ANY_HEADS 4
#define ANY_INSIDE 1
#define ANY_ACCESS 4
#define ANY_STORE 4
#endif

namespace anywidth {

// Widths of a key and a value, query heads of a block, and whether the value is the first VALUE elements of the key.
constexpr int KEY = ANY_KEY, VALUE = ANY_VALUE, HEADS = ANY_HEADS;
constexpr bool INSIDE = ANY_INSIDE;
// Elements of q and kv that may be read at once, and of out that may be written.
constexpr int ACCESS = ANY_ACCESS, STORE = ANY_STORE;

constexpr int WARPS = 4, THREADS = WARPS * 32, KEYS = 16, TILE = WARPS * KEYS;
constexpr int MOST_PARTS = 64;

constexpr int roundUp(int n, int to) { return (n + to - 1) / to * to; }

// Columns as they are summed, and floats between the heads of a warp's sums: rows fall on different banks.
constexpr int COLUMNS = roundUp(VALUE, 16), SUM_STRIDE = COLUMNS + 8;
// A part in memory: sums [HEADS][COLUMNS], maxima [HEADS], totals [HEADS].
constexpr int PART_FLOATS = HEADS * COLUMNS + roundUp(2 * HEADS, 4);

// Shared memory: what the walk needs; over it, once keys are read, the warps' sums, maxima and totals, and then the factors of parts; behind it
// the parts folded so far, with maxima and totals twice.
constexpr int SUM_FLOATS = WARPS * HEADS * (SUM_STRIDE + 2);
constexpr int FACTOR_FLOATS = 2 * MOST_PARTS * HEADS;
constexpr int MERGE_BYTES = 4 * (SUM_FLOATS > FACTOR_FLOATS ? SUM_FLOATS : FACTOR_FLOATS);
constexpr int FOLDED_FLOATS = HEADS * COLUMNS + 4 * HEADS;
template <int WALK_BYTES> struct Memory {
  static constexpr int FOLDED_AT = roundUp(WALK_BYTES > MERGE_BYTES ? WALK_BYTES : MERGE_BYTES, 16);
  static constexpr int BYTES = FOLDED_AT + 4 * FOLDED_FLOATS;
};

// 16 bytes from byte 16 * chunk of a row of WIDTH_BYTES on, read AT_ONCE bytes at a time; zeros beyond the row or where it is not `there`.
template <int AT_ONCE, int WIDTH_BYTES> ATT_DEVICE att::Quad chunkOf(const void *row, int chunk, bool there) {
  att::Quad v = {0, 0, 0, 0};
  const unsigned char *from = static_cast<const unsigned char *>(row) + chunk * 16;
  const int left = there ? WIDTH_BYTES - chunk * 16 : 0;
  if constexpr (AT_ONCE == 16) {
    if (left > 0) v = *reinterpret_cast<const att::Quad *>(from);
  } else if constexpr (AT_ONCE == 8) {
    if (left > 0) {
      const uint2 w = *reinterpret_cast<const uint2 *>(from);
      v.x = w.x, v.y = w.y;
    }
    if (left > 8) {
      const uint2 w = *reinterpret_cast<const uint2 *>(from + 8);
      v.z = w.x, v.w = w.y;
    }
  } else if constexpr (AT_ONCE == 4) {
    const unsigned *w = reinterpret_cast<const unsigned *>(from);
    if (left > 0) v.x = w[0];
    if (left > 4) v.y = w[1];
    if (left > 8) v.z = w[2];
    if (left > 12) v.w = w[3];
  } else {
    const unsigned short *h = reinterpret_cast<const unsigned short *>(from);
    auto two = [&](int i) { return (left > 2 * i ? h[i] : 0u) | (left > 2 * i + 2 ? (unsigned)h[i + 1] << 16 : 0u); };
    v = {two(0), two(2), two(4), two(6)};
  }
  return v;
}

ATT_DEVICE void put(float *to, float x) { *to = x; }
ATT_DEVICE void put(att::bf16_bits *to, float x) { *to = (att::bf16_bits)att::pack(x, 0.f); }
ATT_DEVICE void putFour(float *to, float4 v) { *reinterpret_cast<float4 *>(to) = v; }
ATT_DEVICE void putFour(att::bf16_bits *to, float4 v) {
  uint2 packed;
  packed.x = att::pack(v.x, v.y), packed.y = att::pack(v.z, v.w);
  *reinterpret_cast<uint2 *>(to) = packed;
}

} // namespace anywidth
