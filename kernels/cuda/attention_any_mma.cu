// attention_any_mma: attention of any widths up to 256 over a paged cache, bf16 in and out, by matrix instructions of a warp. Grid and parts:
// attention_any.cuh.
//
// The block's query heads (up to 16) are the M side of mma.m16n8k16. Each warp walks its keys through a ring of STAGES x 16 keys (and values, where
// they do not lie inside the keys) in shared memory, filled by cp.async, or by loads of ANY_ACCESS elements where addresses allow no 16 bytes. Keys
// are the B operand as they lie (ldmatrix), the probabilities' C fragment is the A fragment of the second product, values are its B operand
// through ldmatrix.trans. Widths are filled up with zeros to multiples of 16. Rows of the ring are an odd number of 16-byte chunks apart: no bank
// conflicts for ldmatrix.
//
// Bound: latency for few rows (sequence, page, keys, one after another), then bytes of keys and values.
// Times (H200, in graphs; in brackets bytes at 4.1 TB/s; 1, 32, 128 rows): 8 heads over a latent of 64 + 16, context 480: 6.1, 7.7, 9.7 us (2.5 for
// the last); 32 heads over 8 of 96, context 512: 7.1, 18.2, 62.7 us (0.4, 12.4, 49.5). One row of 32,768 of the former 16.4 us (1.3). Prompts of
// 2,048: 129 us and 1.31 ms, their operations 6 and 32 us.
#include "attention_any.cuh"

#ifndef ANY_STAGES
#define ANY_STAGES 3
#endif

namespace anywidth {

constexpr int STAGES = ANY_STAGES;
constexpr int STEPS = (KEY + 15) / 16, VALUE_STEPS = (VALUE + 15) / 16;
constexpr int KEY_ROW = (2 * STEPS + 1) * 16, VALUE_ROW = INSIDE ? KEY_ROW : (2 * VALUE_STEPS + 1) * 16;
constexpr int VALUES_AT = INSIDE ? 0 : KEYS * KEY_ROW;
constexpr int STAGE_BYTES = KEYS * KEY_ROW + (INSIDE ? 0 : KEYS * VALUE_ROW), RING_BYTES = STAGES * STAGE_BYTES;
// Rows g + 8 of fragments are heads only where there are more than 8.
constexpr int HALVES = HEADS > 8 ? 2 : 1;
// Blocks of an SM, by the registers of a thread that hold the query and the sums.
constexpr int HELD = 4 * STEPS + 8 * VALUE_STEPS, BLOCKS = HELD <= 52 ? 4 : HELD <= 76 ? 3 : 2;

// Asks for 16 rows of WIDTH elements into one stage, four lanes a row. `slot` is of row `lane & 15`, -1 where zeros are wanted.
template <int WIDTH, int ROW> ATT_DEVICE void askRows(const att::bf16_bits *from, int stride, int slot, unsigned char *to, int lane) {
  constexpr int CHUNKS = (WIDTH + 15) / 16 * 2, UNROLL = ACCESS == 8 ? CHUNKS : 1;
  const int first = lane & 3;
#pragma unroll
  for (int half = 0; half < 2; half++) {
    const int key = half * 8 + (lane >> 2), s = att::shuffle(slot, key);
    const att::bf16_bits *row = from + (long long)(s < 0 ? 0 : s) * stride + first * 8;
    unsigned char *place = to + key * ROW + first * 16;
#pragma unroll UNROLL
    for (int c = 0; c < CHUNKS; c += 4) {
      if (c + first >= CHUNKS) continue;
      if constexpr (ACCESS == 8) att::copy16(att::sharedAddress(place + c * 16), row + c * 8, s >= 0 && (c + first) * 8 < WIDTH ? 16 : 0);
      else *reinterpret_cast<att::Quad *>(place + c * 16) = chunkOf<2 * ACCESS, 2 * WIDTH>(row - first * 8, c + first, s >= 0);
    }
  }
}

struct Walk {
  using Element = att::bf16_bits;
  static constexpr int BYTES = WARPS * RING_BYTES;

  // Of rows g and g + 8: the query, sums of two columns in every eight, the running maximum, the total of this lane's keys.
  unsigned query[STEPS][4];
  float sums[2 * VALUE_STEPS][4];
  float most[2], total[2];

  ATT_DEVICE void ask(const Element *from, int heads, int lane) {
    const int g = lane >> 2, t = lane & 3;
#pragma unroll
    for (int step = 0; step < STEPS; step++)
#pragma unroll
      for (int r = 0; r < 4; r++) {
        const int head = g + (r & 1) * 8, column = step * 16 + (r >> 1) * 8 + 2 * t;
        const Element *at = from + head * KEY + column;
        query[step][r] = 0u;
        if (head >= heads) continue;
        if constexpr (ACCESS >= 2) {
          if (column < KEY) query[step][r] = *reinterpret_cast<const unsigned *>(at);
        } else {
          query[step][r] = (column < KEY ? at[0] : 0u) | (column + 1 < KEY ? (unsigned)at[1] << 16 : 0u);
        }
      }
  }

  // This warp's keys: 16 from `from` on, and those of every TILE after, up to `end`.
  ATT_DEVICE void over(const Batch &b, int pages, int kvHead, int from, int end, unsigned char *shared, int warp, int lane) {
    unsigned char *ring = shared + warp * RING_BYTES;
    const int turns = from < end ? (end - from + TILE - 1) / TILE : 0, myKey = lane & 15;
    auto slotOf = [&](int turn) {
      const int key = from + turn * TILE + myKey;
      return turn < turns && key < end ? b.slot(pages, key) : -1;
    };
    auto askFor = [&](int slot, unsigned char *stage) {
      askRows<KEY, KEY_ROW>(b.kv + b.keyOffset + kvHead * KEY, b.kvStride, slot, stage, lane);
      if constexpr (!INSIDE) askRows<VALUE, VALUE_ROW>(b.kv + b.valueOffset + kvHead * VALUE, b.kvStride, slot, stage + VALUES_AT, lane);
    };
    int slot = slotOf(0);
#pragma unroll
    for (int d = 0; d < 2 * VALUE_STEPS; d++)
#pragma unroll
      for (int c = 0; c < 4; c++) sums[d][c] = 0.f;
    most[0] = most[1] = ATT_NOTHING;
    total[0] = total[1] = 0.f;
#pragma unroll
    for (int turn = 0; turn < STAGES - 1; turn++) {
      if (turn < turns) askFor(slot, ring + turn * STAGE_BYTES);
      att::commitCopies();
      slot = slotOf(turn + 1);
    }
    int stage = 0, free = STAGES - 1;
    for (int turn = 0; turn < turns; turn++) {
      att::waitCopies<STAGES - 2>();
      att::warpBarrier(); // every lane's copies of this stage have landed, and every lane has read the stage asked for next
      if (turn + STAGES - 1 < turns) askFor(slot, ring + free * STAGE_BYTES);
      att::commitCopies();
      slot = slotOf(turn + STAGES);
      take(att::sharedAddress(ring + stage * STAGE_BYTES), end - (from + turn * TILE), b.scaleLog2, lane);
      stage = stage + 1 < STAGES ? stage + 1 : 0;
      free = free + 1 < STAGES ? free + 1 : 0;
    }
    att::waitCopies<0>();
#pragma unroll
    for (int half = 0; half < HALVES; half++) {
      total[half] += att::shuffleXor(total[half], 1);
      total[half] += att::shuffleXor(total[half], 2);
    }
  }

  // Takes in the 16 keys of a stage, of which `valid` > 0 count.
  ATT_DEVICE void take(unsigned stage, int valid, float scaleLog2, int lane) {
    const int j = lane >> 3, i = lane & 7, t = lane & 3;
    // Even and odd steps apart, so that the products form two chains.
    float s[2][2][4];
#pragma unroll
    for (int e = 0; e < 2; e++)
#pragma unroll
      for (int c = 0; c < 4; c++) s[e][0][c] = s[e][1][c] = 0.f;
    {
      // Matrices 0, 1: keys 0-7, dims 0-7 and 8-15 of the step: b0 and b1 of the first 8 keys. 2, 3: the same of keys 8-15.
      const unsigned row = stage + ((j >> 1) * 8 + i) * KEY_ROW + (j & 1) * 16;
#pragma unroll
      for (int step = 0; step < STEPS; step++) {
        unsigned k[4];
        att::loadMatrices(k, row + step * 32);
        att::multiply(s[step & 1][0], query[step], k[0], k[1]);
        att::multiply(s[step & 1][1], query[step], k[2], k[3]);
      }
    }
    unsigned p[4] = {0, 0, 0, 0};
#pragma unroll
    for (int half = 0; half < HALVES; half++) {
      float x[4]; // keys 2t, 2t + 1, 8 + 2t, 9 + 2t
#pragma unroll
      for (int c = 0; c < 4; c++) {
        const int n = c >> 1, r = 2 * half + (c & 1);
        x[c] = n * 8 + 2 * t + (c & 1) < valid ? att::product(s[0][n][r] + s[1][n][r], scaleLog2) : ATT_NOTHING;
      }
      float top = fmaxf(fmaxf(x[0], x[1]), fmaxf(x[2], x[3]));
      top = fmaxf(top, att::shuffleXor(top, 1));
      top = fmaxf(top, att::shuffleXor(top, 2));
      top = fmaxf(top, most[half]); // finite: key 0 counts
      const float keep = att::power2(most[half] - top);
      most[half] = top;
#pragma unroll
      for (int c = 0; c < 4; c++) x[c] = att::power2(x[c] - top);
      total[half] = fmaf(total[half], keep, (x[0] + x[1]) + (x[2] + x[3]));
#pragma unroll
      for (int d = 0; d < 2 * VALUE_STEPS; d++) {
        sums[d][2 * half] *= keep;
        sums[d][2 * half + 1] *= keep;
      }
      p[half] = att::pack(x[0], x[1]);
      p[2 + half] = att::pack(x[2], x[3]);
    }
    // Matrices 0, 1: keys 0-7 and 8-15 of dims 0-7: b0 and b1 of the first 8 dims. 2, 3: the same of dims 8-15.
    const unsigned row = stage + VALUES_AT + ((j & 1) * 8 + i) * VALUE_ROW + (j >> 1) * 16;
#pragma unroll
    for (int d = 0; d < VALUE_STEPS; d++) {
      unsigned v[4];
      att::loadMatricesTransposed(v, row + d * 32);
      att::multiply(sums[2 * d], p, v[0], v[1]);
      att::multiply(sums[2 * d + 1], p, v[2], v[3]);
    }
  }

  ATT_DEVICE void put(float *to, float *toMost, float *toTotal, int heads, int lane) const {
    const int g = lane >> 2, t = lane & 3;
#pragma unroll
    for (int half = 0; half < HALVES; half++) {
      const int head = g + half * 8;
      if (head >= heads) continue;
#pragma unroll
      for (int d = 0; d < 2 * VALUE_STEPS; d++)
        *reinterpret_cast<float2 *>(to + head * SUM_STRIDE + d * 8 + 2 * t) = make_float2(sums[d][2 * half], sums[d][2 * half + 1]);
      if (t == 0) toMost[head] = most[half], toTotal[head] = total[half];
    }
  }
};

#ifdef ANY_SHARED_BYTES
static_assert(Memory<Walk::BYTES>::BYTES == ANY_SHARED_BYTES && 4 * PART_FLOATS == ANY_PART_BYTES, "the host counts memory in another way");
#endif

} // namespace anywidth

extern "C" __global__ void __launch_bounds__(128, anywidth::BLOCKS) attention_any_mma(ATT_PARAMETERS) {
  att::waitForEarlierKernels();
  const att::Batch batch = {ATT_ARGUMENTS};
  anywidth::attend<anywidth::Walk>(batch);
}
