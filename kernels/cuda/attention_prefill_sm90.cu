// attention_prefill_128_sm90: attention_prefill_128 (attention_prefill.cu) with the matrix instructions of a warpgroup.
//
// A tile (attention_plan) is up to floor(192 / G) rows. 3 warpgroups of 64 M-rows (row * G + head) share each 128 keys and values, which
// come by cp.async into two stages; while one warpgroup makes probabilities, the others' products keep the tensor cores busy. Scores
// are wgmma m64n128k16 of queries and keys in shared memory; probabilities are its A operand from registers, since the accumulator's
// fragment is A's; values are B with n contiguous, as they lie. Rows of 64 elements, 128-byte swizzle (attention_wgmma.cuh).
// Three warpgroups rather than two: keys leave L2 once for 192 M-rows, 16 bytes a clock of an SM at 60% of the tensor cores' rate.
//
// Bound: 4 * 128 * heads * (visible keys) operations. Times: docs/performance-cuda.md.
#include "attention_batch.cuh"
#include "attention_wgmma.cuh"

namespace prefill90 {

using att::Batch;

constexpr int HD = 128, GROUPS = 3, M = GROUPS * 64, KEYS = 128, THREADS = GROUPS * 128, ROW_BYTES = 256;
// Queries: [GROUPS][2 halves of the dims][64 rows][128 bytes]. A stage: keys [2 halves][KEYS][128 bytes], values alike.
constexpr int QUERY_BYTES = M * ROW_BYTES, HALF_QUERY = 64 * 128;
constexpr int HALF_KEYS = KEYS * 128, VALUES = 2 * HALF_KEYS, STAGE_BYTES = 4 * HALF_KEYS;
constexpr int BYTES = QUERY_BYTES + 2 * STAGE_BYTES;
static_assert(BYTES + (int)sizeof(int) * 2 * KEYS <= 227 * 1024, "shared memory of a block");

// Where 16-byte chunk c (0 to 15) of a row of 128 elements lies in two halves of `half` bytes.
ATT_DEVICE unsigned chunkAt(int row, int c, int half) { return (c >> 3) * half + row * 128 + (((c & 7) ^ (row & 7)) << 4); }

// The keys and values of `slots` into a stage.
ATT_DEVICE void ask(const Batch &b, int kvHead, const int *slots, unsigned stage, int thread) {
  const int c = thread & 15;
  const att::bf16_bits *column = b.kv + kvHead * HD + c * 8;
#pragma unroll
  for (int i = 0; i < (KEYS * 16 + THREADS - 1) / THREADS; i++) {
    const int key = (i * THREADS + thread) >> 4;
    if (key >= KEYS) break;
    const int s = slots[key];
    const att::bf16_bits *row = column + (long long)(s < 0 ? 0 : s) * b.kvStride;
    const unsigned to = stage + chunkAt(key, c, HALF_KEYS);
    att::copy16(to, row + b.keyOffset, s < 0 ? 0 : 16);
    att::copy16(to + VALUES, row + b.valueOffset, s < 0 ? 0 : 16);
  }
}

ATT_DEVICE void attend(const Batch &b) {
  ATT_DYNAMIC_SHARED(shared);
  __shared__ int slots[2][KEYS];
  const int thread = threadIdx.x, wg = thread >> 7, warp = thread >> 5, lane = thread & 31, g = lane >> 2, t = lane & 3;
  const unsigned queries = att::sharedAddress(shared), stages = queries + QUERY_BYTES;
  const int group = b.groupHeads;
  const int tiles = b.plan[1];
  const int *entries = b.plan + 4 + b.rows;

  for (int item = blockIdx.x; item < tiles * b.kvHeads; item += gridDim.x) {
    const int tile = tiles - 1 - item / b.kvHeads, kvHead = item % b.kvHeads;
    const int firstRow = entries[2 * tile], count = entries[2 * tile + 1];
    const int sequence = b.rowSequence[(long long)firstRow * b.rowSequenceStride];
    const int firstPosition = b.positions[(long long)firstRow * b.positionStride];
    const int pages = sequence * b.tableStride;
    const int start = firstPosition - b.window + 1 > 0 ? firstPosition - b.window + 1 : 0;
    const int end = firstPosition + count; // keys [start, end)
    const int turns = (end - start + KEYS - 1) / KEYS;
    auto lookUp = [&](int turn) {
      const int key = start + turn * KEYS + thread;
      if (thread < KEYS) slots[turn & 1][thread] = key < end ? b.slot(pages, key) : -1;
    };

    lookUp(0);
#pragma unroll
    for (int k = 0; k < M * 16 / THREADS; k++) {
      const int m = (k * THREADS + thread) >> 4, c = thread & 15, row = m / group, head = m - row * group;
      const bool real = row < count;
      const att::bf16_bits *from =
          b.q + (long long)(firstRow + (real ? row : 0)) * b.qStride + (kvHead * group + (real ? head : 0)) * HD + c * 8;
      att::copy16(queries + (m >> 6) * 2 * HALF_QUERY + chunkAt(m & 63, c, HALF_QUERY), from, real ? 16 : 0);
    }
    att::blockBarrier(); // the slots of turn 0
    ask(b, kvHead, slots[0], stages, thread);
    att::commitCopies();
    lookUp(1);

    // This thread's rows: M-row warp * 16 + g and 8 further.
    float most[2] = {ATT_NOTHING, ATT_NOTHING}, total[2] = {0.f, 0.f};
    float sums[64];
#pragma unroll
    for (int k = 0; k < 64; k++) sums[k] = 0.f;
    const unsigned myQueries = queries + wg * 2 * HALF_QUERY;

    for (int turn = 0; turn < turns; turn++) {
      const unsigned stage = stages + (turn & 1) * STAGE_BYTES;
      att::waitCopies<0>();
      att::showToMatrices();
      att::blockBarrier(); // the stage and the next turn's slots are there for all; all are done with the other stage
      if (turn + 1 < turns) ask(b, kvHead, slots[(turn + 1) & 1], stages + ((turn + 1) & 1) * STAGE_BYTES, thread);
      att::commitCopies();
      lookUp(turn + 2); // over the slots of this turn, asked for before the barrier

      float s[64];
      att::beginMatrices();
#pragma unroll
      for (int step = 0; step < HD / 16; step++) {
        const unsigned at = (step & 3) * 32; // 16 dims further in a half
        att::multiplyGroup(s, att::descriptor(myQueries + (step >> 2) * HALF_QUERY + at, 0, 1024),
                           att::descriptor(stage + (step >> 2) * HALF_KEYS + at, 0, 1024), step > 0);
      }
      att::endMatrices();
      att::waitMatrices<0>();

      const int base = start + turn * KEYS;
      if (base + KEYS - 1 > firstPosition || base <= end - 1 - b.window) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
          const int last = firstPosition + (warp * 16 + half * 8 + g) / group; // the last key that the row sees
#pragma unroll
          for (int n = 0; n < KEYS / 8; n++)
#pragma unroll
            for (int e = 0; e < 2; e++) {
              const int key = base + n * 8 + 2 * t + e;
              if (key > last || key <= last - b.window) s[4 * n + 2 * half + e] = ATT_NOTHING;
            }
        }
      }
#pragma unroll
      for (int half = 0; half < 2; half++) {
        float top = s[2 * half];
#pragma unroll
        for (int n = 0; n < KEYS / 8; n++) top = fmaxf(top, fmaxf(s[4 * n + 2 * half], s[4 * n + 2 * half + 1]));
        top = fmaxf(top, att::shuffleXor(top, 1));
        top = fmaxf(top, att::shuffleXor(top, 2));
        top = fmaxf(most[half], top * b.scaleLog2);
        const float base2 = top == ATT_NOTHING ? 0.f : top; // nothing seen yet: any finite number will do
        const float keep = att::power2(most[half] - base2);
        most[half] = top;
        float sum = 0.f;
#pragma unroll
        for (int n = 0; n < KEYS / 8; n++)
#pragma unroll
          for (int e = 0; e < 2; e++) {
            const float p = att::power2(s[4 * n + 2 * half + e] * b.scaleLog2 - base2);
            s[4 * n + 2 * half + e] = p;
            sum += p;
          }
        total[half] = total[half] * keep + sum;
#pragma unroll
        for (int d = 0; d < HD / 8; d++) {
          sums[4 * d + 2 * half] *= keep;
          sums[4 * d + 2 * half + 1] *= keep;
        }
      }
      unsigned p[KEYS / 16][4];
#pragma unroll
      for (int n = 0; n < KEYS / 16; n++)
#pragma unroll
        for (int r = 0; r < 4; r++) p[n][r] = att::pack(s[8 * n + 2 * r], s[8 * n + 2 * r + 1]);
      att::beginMatrices();
#pragma unroll
      for (int n = 0; n < KEYS / 16; n++)
        att::multiplyGroupRegisters(sums, p[n], att::descriptor(stage + VALUES + n * 16 * 128, HALF_KEYS, 1024));
      att::endMatrices();
      att::waitMatrices<0>();
    }

    // Out by way of the queries' place, so that memory sees whole 16-byte chunks.
    att::blockBarrier();
    unsigned char *mine = shared + wg * 2 * HALF_QUERY;
#pragma unroll
    for (int half = 0; half < 2; half++) {
      total[half] += att::shuffleXor(total[half], 1);
      total[half] += att::shuffleXor(total[half], 2);
      const int m = warp * 16 + half * 8 + g;
      float scale = 1.f;
      if (b.sinks != nullptr && m / group < count) {
        const float sink = b.sinks[kvHead * group + m % group] * att::LOG2_E, top = fmaxf(most[half], sink);
        scale = att::power2(most[half] - top);
        total[half] = total[half] * scale + att::power2(sink - top);
      }
      scale /= total[half];
#pragma unroll
      for (int d = 0; d < HD / 8; d++)
        *reinterpret_cast<unsigned *>(mine + chunkAt(m & 63, d, HALF_QUERY) + 4 * t) =
            att::pack(sums[4 * d + 2 * half] * scale, sums[4 * d + 2 * half + 1] * scale);
    }
    att::warpBarrier(); // a warp reads back its own 16 rows
#pragma unroll
    for (int k = 0; k < 8; k++) {
      const int m = warp * 16 + k * 2 + (lane >> 4), c = lane & 15, row = m / group, head = m - row * group;
      if (row < count)
        *reinterpret_cast<att::Quad *>(b.out + (long long)(firstRow + row) * b.outStride + (kvHead * group + head) * HD + c * 8) =
            *reinterpret_cast<const att::Quad *>(mine + chunkAt(m & 63, c, HALF_QUERY));
    }
    att::waitCopies<0>();
    att::blockBarrier(); // shared memory is free for the next tile
  }
}

} // namespace prefill90

extern "C" __global__ void __launch_bounds__(384, 1) attention_prefill_128_sm90(ATT_PARAMETERS) {
  att::waitForEarlierKernels();
  const att::Batch batch = {ATT_ARGUMENTS};
  prefill90::attend(batch);
}
