// attention_any_lanes: attention of any widths up to 1,024 over a paged cache, f32 or bf16, by lanes that share a key. Grid and parts:
// attention_any.cuh.
//
// LANES lanes (8, 16 or 32) share a key: lane l of them holds 16-byte chunks l, l + LANES, .. of the query of HEADS heads, of the key and of the
// sums, in registers as f32. A warp takes 32 / LANES keys at a time, AT_ONCE of them under way; every group of lanes keeps its own maximum and
// total, and groups are put together at the end of a part. Everything is f32: nothing is rounded on the way.
//
// Bound: operations in f32 (HEADS * (KEY + VALUE) products a key).
// Times: none; the bench of attention has bf16 up to 256 wide only, which attention_any_mma.cu takes.
#include "attention_any.cuh"

#ifndef ANY_LANES
#define ANY_LANES 8
#endif
#ifndef ANY_ELEMENT
#define ANY_ELEMENT float
#endif

namespace anywidth {

constexpr int LANES = ANY_LANES, GROUPS = 32 / LANES, EACH = KEYS / GROUPS; // keys of a group in a turn
constexpr int CHUNK = 16 / (int)sizeof(ANY_ELEMENT);                        // elements
constexpr int KEY_CHUNKS = ((KEY + CHUNK - 1) / CHUNK + LANES - 1) / LANES; // of a lane
constexpr int VALUE_CHUNKS = ((VALUE + CHUNK - 1) / CHUNK + LANES - 1) / LANES;
// Keys under way, with their values where those are read too: at most 16 chunks.
constexpr int READ_CHUNKS = KEY_CHUNKS + (INSIDE ? 0 : VALUE_CHUNKS);
constexpr int AT_ONCE = READ_CHUNKS <= 4 ? 4 : READ_CHUNKS <= 8 ? 2 : 1;

ATT_DEVICE void widen(att::Quad v, float (&x)[4]) {
  x[0] = __int_as_float((int)v.x), x[1] = __int_as_float((int)v.y), x[2] = __int_as_float((int)v.z), x[3] = __int_as_float((int)v.w);
}
ATT_DEVICE void widen(att::Quad v, float (&x)[8]) {
  const unsigned words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
  for (int i = 0; i < 4; i++) {
    x[2 * i] = __int_as_float((int)(words[i] << 16));
    x[2 * i + 1] = __int_as_float((int)(words[i] & 0xffff0000u));
  }
}

struct Walk {
  using Element = ANY_ELEMENT;
  static constexpr int BYTES = 0;
  static constexpr int PIECE = ACCESS * (int)sizeof(Element), KEY_BYTES = KEY * (int)sizeof(Element), VALUE_BYTES = VALUE * (int)sizeof(Element);

  float query[HEADS][KEY_CHUNKS * CHUNK], sums[HEADS][VALUE_CHUNKS * CHUNK];
  float most[HEADS], total[HEADS];

  ATT_DEVICE void ask(const Element *from, int heads, int lane) {
#pragma unroll
    for (int h = 0; h < HEADS; h++)
#pragma unroll
      for (int j = 0; j < KEY_CHUNKS; j++) {
        float x[CHUNK];
        widen(chunkOf<PIECE, KEY_BYTES>(from + h * KEY, lane % LANES + j * LANES, h < heads), x);
#pragma unroll
        for (int e = 0; e < CHUNK; e++) query[h][j * CHUNK + e] = x[e];
      }
  }

  // This warp's keys: 16 from `from` on, and those of every TILE after, up to `end`.
  ATT_DEVICE void over(const Batch &b, int pages, int kvHead, int from, int end, unsigned char *, int, int lane) {
    const int turns = from < end ? (end - from + TILE - 1) / TILE : 0, myKey = lane & 15;
    auto slotOf = [&](int turn) {
      const int key = from + turn * TILE + myKey;
      return turn < turns && key < end ? b.slot(pages, key) : -1;
    };
#pragma unroll
    for (int h = 0; h < HEADS; h++) {
      most[h] = ATT_NOTHING, total[h] = 0.f;
#pragma unroll
      for (int c = 0; c < VALUE_CHUNKS * CHUNK; c++) sums[h][c] = 0.f;
    }
    const Element *keys = reinterpret_cast<const Element *>(b.kv) + b.keyOffset + kvHead * KEY;
    const Element *values = reinterpret_cast<const Element *>(b.kv) + b.valueOffset + kvHead * VALUE;
    int slot = slotOf(0);
    for (int turn = 0; turn < turns; turn++) {
      const int next = slotOf(turn + 1), valid = end - (from + turn * TILE);
#pragma unroll 1
      for (int first = 0; first < EACH; first += AT_ONCE) take(b, keys, values, slot, first * GROUPS, valid, lane);
      slot = next;
    }
    joinGroups();
  }

  // Takes in keys `first` to first + GROUPS * AT_ONCE - 1 of a turn, those below `valid`. `slot` is of key `lane & 15`.
  ATT_DEVICE void take(const Batch &b, const Element *keys, const Element *values, int slot, int first, int valid, int lane) {
    const int l = lane % LANES;
    att::Quad k[AT_ONCE][KEY_CHUNKS], v[AT_ONCE][VALUE_CHUNKS];
    bool counts[AT_ONCE];
#pragma unroll
    for (int u = 0; u < AT_ONCE; u++) {
      const int key = first + u * GROUPS + lane / LANES, s = att::shuffle(slot, key);
      const long long at = (long long)(s < 0 ? 0 : s) * b.kvStride;
      counts[u] = key < valid;
#pragma unroll
      for (int j = 0; j < KEY_CHUNKS; j++) k[u][j] = chunkOf<PIECE, KEY_BYTES>(keys + at, l + j * LANES, s >= 0);
#pragma unroll
      for (int j = 0; j < VALUE_CHUNKS; j++)
        v[u][j] = INSIDE ? k[u][j] : chunkOf<PIECE, VALUE_BYTES>(values + at, l + j * LANES, s >= 0);
    }
    float score[AT_ONCE][HEADS];
#pragma unroll
    for (int u = 0; u < AT_ONCE; u++) {
#pragma unroll
      for (int h = 0; h < HEADS; h++) score[u][h] = 0.f;
#pragma unroll
      for (int j = 0; j < KEY_CHUNKS; j++) {
        float x[CHUNK];
        widen(k[u][j], x);
#pragma unroll
        for (int h = 0; h < HEADS; h++)
#pragma unroll
          for (int e = 0; e < CHUNK; e++) score[u][h] = fmaf(query[h][j * CHUNK + e], x[e], score[u][h]);
      }
    }
#pragma unroll
    for (int d = LANES / 2; d > 0; d >>= 1)
#pragma unroll
      for (int u = 0; u < AT_ONCE; u++)
#pragma unroll
        for (int h = 0; h < HEADS; h++) score[u][h] += att::shuffleXor(score[u][h], d);
#pragma unroll
    for (int h = 0; h < HEADS; h++) {
      float top = most[h];
#pragma unroll
      for (int u = 0; u < AT_ONCE; u++) {
        score[u][h] = counts[u] ? att::product(score[u][h], b.scaleLog2) : ATT_NOTHING;
        top = fmaxf(top, score[u][h]);
      }
      const float base = top == ATT_NOTHING ? 0.f : top; // a group may have had no key yet
      const float keep = att::power2(most[h] - base);
      most[h] = top;
#pragma unroll
      for (int u = 0; u < AT_ONCE; u++) {
        score[u][h] = att::power2(score[u][h] - base);
        total[h] = u == 0 ? fmaf(total[h], keep, score[u][h]) : total[h] + score[u][h];
      }
#pragma unroll
      for (int c = 0; c < VALUE_CHUNKS * CHUNK; c++) sums[h][c] *= keep;
    }
#pragma unroll
    for (int u = 0; u < AT_ONCE; u++)
#pragma unroll
      for (int j = 0; j < VALUE_CHUNKS; j++) {
        float x[CHUNK];
        widen(v[u][j], x);
#pragma unroll
        for (int h = 0; h < HEADS; h++)
#pragma unroll
          for (int e = 0; e < CHUNK; e++) sums[h][j * CHUNK + e] = fmaf(score[u][h], x[e], sums[h][j * CHUNK + e]);
      }
  }

  // Puts the warp's groups of lanes together; the first group then holds the result.
  ATT_DEVICE void joinGroups() {
#pragma unroll
    for (int d = LANES; d < 32; d *= 2)
#pragma unroll
      for (int h = 0; h < HEADS; h++) {
        const float other = att::shuffleXor(most[h], d), top = fmaxf(most[h], other);
        const float base = top == ATT_NOTHING ? 0.f : top;
        const float mine = att::power2(most[h] - base), theirs = att::power2(other - base);
        total[h] = fmaf(total[h], mine, att::shuffleXor(total[h], d) * theirs);
        most[h] = top;
#pragma unroll
        for (int c = 0; c < VALUE_CHUNKS * CHUNK; c++) sums[h][c] = fmaf(sums[h][c], mine, att::shuffleXor(sums[h][c], d) * theirs);
      }
  }

  ATT_DEVICE void put(float *to, float *toMost, float *toTotal, int heads, int lane) const {
    if (lane >= LANES) return;
#pragma unroll
    for (int h = 0; h < HEADS; h++) {
      if (h >= heads) continue;
#pragma unroll
      for (int j = 0; j < VALUE_CHUNKS; j++) {
        const int column = (lane + j * LANES) * CHUNK;
        if (column >= VALUE) continue;
#pragma unroll
        for (int e = 0; e < CHUNK; e += 4) {
          const float *x = &sums[h][j * CHUNK + e];
          *reinterpret_cast<float4 *>(to + h * SUM_STRIDE + column + e) = make_float4(x[0], x[1], x[2], x[3]);
        }
      }
      if (lane == 0) toMost[h] = most[h], toTotal[h] = total[h];
    }
  }
};

#ifdef ANY_SHARED_BYTES
static_assert(Memory<Walk::BYTES>::BYTES == ANY_SHARED_BYTES && 4 * PART_FLOATS == ANY_PART_BYTES, "the host counts memory in another way");
#endif

} // namespace anywidth

extern "C" __global__ void __launch_bounds__(128, 2) attention_any_lanes(ATT_PARAMETERS) {
  att::waitForEarlierKernels();
  const att::Batch batch = {ATT_ARGUMENTS};
  anywidth::attend<anywidth::Walk>(batch);
}
