// attention_prefill_{64,128}: causal attention of tiles of rows (prompts and their chunks) over a paged cache; bf16 in and out.
//
// Shapes as in attention_decode.cu. A tile (attention_plan) is up to floor(128 / G) rows of one sequence, G the query heads of a KV head.
// A block takes a tile and a KV head: its M side is row * G + head, so the keys it reads serve all heads of the group and
// the diagonal is narrow. 4 warps of 32 M-rows; queries stay in shared memory, keys and values come 64 at a time through two stages
// of cp.async; scores, online softmax and sums in registers (mma.m16n8k16, f32). 32 rows a warp, not 16, because every
// fragment of keys then serves two products: shared memory would bound it otherwise.
// Chunks c of 16 bytes lie at c ^ (row & 7). Blocks take tiles from the last on: those of long contexts first.
// The grid is any number of blocks: a block goes on with tile + blocks.
//
// Bound: 4 * HD * heads * (visible keys) operations at what mma.sync reaches (about 60% of wgmma's rate on Hopper).
// Times (H200, 32 heads over 4 of 128): 4 x 4,096 tokens 1.77 ms, 311 TFLOP/s; 16 x 1,024 220; 2,048 after 6,144 325.
#include "attention_batch.cuh"

namespace prefill {

using att::Batch;

constexpr int M = 128, KEYS = 64; // 4 warps of 32 M-rows

template <int HD> struct Layout {
  static constexpr int CHUNKS = HD / 8, ROW_BYTES = HD * 2;
  static constexpr int QUERY_BYTES = M * ROW_BYTES;
  static constexpr int STAGE_BYTES = 2 * KEYS * ROW_BYTES; // keys, then values
  static constexpr int BYTES = QUERY_BYTES + 2 * STAGE_BYTES;
};

// This warp's 16 of the 64 keys and values from `first` on. `slot` is of key first + 16 * warp + (lane & 15), -1 beyond the end.
template <int HD> ATT_DEVICE void ask(const Batch &b, int kvHead, int slot, unsigned stage, int warp, int lane) {
  using L = Layout<HD>;
  constexpr int KEYS_AT_ONCE = 32 / L::CHUNKS;
  const int c = lane % L::CHUNKS;
  const att::bf16_bits *column = b.kv + (int)att::opaque(kvHead * HD + c * 8);
#pragma unroll
  for (int i = 0; i < 16 / KEYS_AT_ONCE; i++) {
    const int local = i * KEYS_AT_ONCE + lane / L::CHUNKS, key = warp * 16 + local;
    const int s = att::shuffle(slot, local);
    const att::bf16_bits *row = column + (long long)(s < 0 ? 0 : s) * b.kvStride;
    const unsigned to = stage + key * L::ROW_BYTES + ((c ^ (key & 7)) << 4);
    att::copy16(to, row + b.keyOffset, s < 0 ? 0 : 16);
    att::copy16(to + KEYS * L::ROW_BYTES, row + b.valueOffset, s < 0 ? 0 : 16);
  }
}

template <int HD> ATT_DEVICE void attend(const Batch &b) {
  using L = Layout<HD>;
  ATT_DYNAMIC_SHARED(shared);
  const int thread = threadIdx.x, warp = thread >> 5, lane = thread & 31, g = lane >> 2, t = lane & 3, j = lane >> 3, i = lane & 7;
  const unsigned queries = att::sharedAddress(shared), stages = queries + L::QUERY_BYTES;
  const int group = b.groupHeads;
  const int tiles = b.plan[1];
  const int *entries = b.plan + 4 + b.rows;

  for (int item = blockIdx.x; item < tiles * b.kvHeads; item += gridDim.x) {
    const int tile = tiles - 1 - item / b.kvHeads, kvHead = item % b.kvHeads;
    const int firstRow = entries[2 * tile];
    const int count = entries[2 * tile + 1];
    const int sequence = b.rowSequence[(long long)firstRow * b.rowSequenceStride];
    const int firstPosition = b.positions[(long long)firstRow * b.positionStride];
    const int pages = sequence * b.tableStride;
    const int start = firstPosition - b.window + 1 > 0 ? firstPosition - b.window + 1 : 0;
    const int end = firstPosition + count; // keys [start, end)
    const int turns = (end - start + KEYS - 1) / KEYS;
    auto slotOf = [&](int turn) {
      const int key = start + turn * KEYS + warp * 16 + (lane & 15);
      return key < end ? b.slot(pages, key) : -1;
    };

    // Queries: this warp's 32 M-rows; those beyond the tile are zeros.
#pragma unroll
    for (int k = 0; k < L::CHUNKS; k++) {
      const int m = warp * 32 + k * (32 / L::CHUNKS) + lane / L::CHUNKS, c = lane % L::CHUNKS;
      const int row = m / group, head = m - row * group;
      const bool real = row < count;
      const att::bf16_bits *from =
          b.q + (long long)(firstRow + (real ? row : 0)) * b.qStride + (kvHead * group + head) * HD + c * 8;
      att::copy16(queries + m * L::ROW_BYTES + ((c ^ (m & 7)) << 4), from, real ? 16 : 0);
    }
    ask<HD>(b, kvHead, slotOf(0), stages, warp, lane);
    att::commitCopies();
    int slot = slotOf(1);

    // Rows of the fragments: index 2 * tile of 16 + half; M-row warp * 32 + 8 * index + g.
    float most[4], total[4];
#pragma unroll
    for (int r = 0; r < 4; r++) {
      most[r] = ATT_NOTHING;
      total[r] = 0.f;
    }
    float sums[2][HD / 8][4];
#pragma unroll
    for (int x = 0; x < 2; x++)
#pragma unroll
      for (int d = 0; d < HD / 8; d++)
#pragma unroll
        for (int c = 0; c < 4; c++) sums[x][d][c] = 0.f;

    for (int turn = 0; turn < turns; turn++) {
      const unsigned stage = stages + (turn & 1) * L::STAGE_BYTES;
      att::waitCopies<0>();
      att::blockBarrier(); // the stage has landed for all, and all have read the other one
      if (turn + 1 < turns) ask<HD>(b, kvHead, slot, stages + ((turn + 1) & 1) * L::STAGE_BYTES, warp, lane);
      att::commitCopies();
      slot = slotOf(turn + 2);

      // Where this lane points ldmatrix at step 0; step n is 2 n chunks on, which under the swizzle is an exclusive or with 32 n.
      const unsigned queryRow = att::opaque(queries + (warp * 32 + (j & 1) * 8 + i) * L::ROW_BYTES + (((j >> 1) ^ i) << 4));
      const unsigned keyRow = att::opaque(stage + ((j >> 1) * 8 + i) * L::ROW_BYTES + (((j & 1) ^ i) << 4));
      float s[2][KEYS / 8][4];
#pragma unroll
      for (int x = 0; x < 2; x++)
#pragma unroll
        for (int n = 0; n < KEYS / 8; n++)
#pragma unroll
          for (int c = 0; c < 4; c++) s[x][n][c] = 0.f;
#pragma unroll
      for (int step = 0; step < HD / 16; step++) {
        // A: matrices 0, 1 are rows 0-7 and 8-15 of dims 0-7; 2, 3 of dims 8-15: a0, a1, a2, a3.
        unsigned q[2][4];
#pragma unroll
        for (int x = 0; x < 2; x++)
          att::loadMatrices(q[x], (queryRow ^ (step * 32)) + x * 16 * L::ROW_BYTES);
#pragma unroll
        for (int n = 0; n < KEYS / 16; n++) {
          unsigned k[4]; // as in attention_decode.cu: b0, b1 of keys 0-7, then of keys 8-15
          att::loadMatrices(k, (keyRow ^ (step * 32)) + n * 16 * L::ROW_BYTES);
#pragma unroll
          for (int x = 0; x < 2; x++) {
            att::multiply(s[x][2 * n], q[x], k[0], k[1]);
            att::multiply(s[x][2 * n + 1], q[x], k[2], k[3]);
          }
        }
      }

      // Every row sees all of these keys, unless they reach past the first row or begin before the last row's window.
      const int base = start + turn * KEYS;
      if (base + KEYS - 1 > firstPosition || base <= end - 1 - b.window) {
#pragma unroll
        for (int r = 0; r < 4; r++) {
          const int last = firstPosition + (warp * 32 + r * 8 + g) / group; // the last key that the row sees
          const int x = r >> 1, c = (r & 1) * 2;
#pragma unroll
          for (int n = 0; n < KEYS / 8; n++)
#pragma unroll
            for (int e = 0; e < 2; e++) {
              const int key = base + n * 8 + 2 * t + e;
              if (key > last || key <= last - b.window) s[x][n][c + e] = ATT_NOTHING;
            }
        }
      }

#pragma unroll
      for (int r = 0; r < 4; r++) {
        const int x = r >> 1, c = (r & 1) * 2;
        float top = s[x][0][c];
#pragma unroll
        for (int n = 0; n < KEYS / 8; n++) top = fmaxf(top, fmaxf(s[x][n][c], s[x][n][c + 1]));
        top = fmaxf(top, att::shuffleXor(top, 1));
        top = fmaxf(top, att::shuffleXor(top, 2));
        top = fmaxf(most[r], top * b.scaleLog2);
        // A row that has seen nothing yet (its window begins later): any finite number will do in its place.
        const float base2 = top == ATT_NOTHING ? 0.f : top;
        const float keep = att::power2(most[r] - base2);
        most[r] = top;
        float sum = 0.f;
#pragma unroll
        for (int n = 0; n < KEYS / 8; n++) {
          s[x][n][c] = att::power2(s[x][n][c] * b.scaleLog2 - base2);
          s[x][n][c + 1] = att::power2(s[x][n][c + 1] * b.scaleLog2 - base2);
          sum += s[x][n][c] + s[x][n][c + 1];
        }
        total[r] = total[r] * keep + sum;
#pragma unroll
        for (int d = 0; d < HD / 8; d++) {
          sums[x][d][c] *= keep;
          sums[x][d][c + 1] *= keep;
        }
      }

      const unsigned valueRow = att::opaque(stage + (KEYS + (j & 1) * 8 + i) * L::ROW_BYTES + (((j >> 1) ^ i) << 4));
#pragma unroll
      for (int n = 0; n < KEYS / 16; n++) {
        // Probabilities of 16 keys: C fragments of two 8-key products are one A fragment.
        unsigned p[2][4];
#pragma unroll
        for (int x = 0; x < 2; x++) {
          p[x][0] = att::pack(s[x][2 * n][0], s[x][2 * n][1]);
          p[x][1] = att::pack(s[x][2 * n][2], s[x][2 * n][3]);
          p[x][2] = att::pack(s[x][2 * n + 1][0], s[x][2 * n + 1][1]);
          p[x][3] = att::pack(s[x][2 * n + 1][2], s[x][2 * n + 1][3]);
        }
#pragma unroll
        for (int d = 0; d < HD / 16; d++) {
          unsigned v[4]; // as in attention_decode.cu: b0, b1 of dims 0-7, then of dims 8-15
          att::loadMatricesTransposed(v, (valueRow ^ (d * 32)) + n * 16 * L::ROW_BYTES);
#pragma unroll
          for (int x = 0; x < 2; x++) {
            att::multiply(sums[x][2 * d], p[x], v[0], v[1]);
            att::multiply(sums[x][2 * d + 1], p[x], v[2], v[3]);
          }
        }
      }
    }

    // Out by way of the warp's own rows of the query tile, so that memory sees whole 16-byte chunks. What the tile is, is looked up again: it need not
    // stay in registers meanwhile.
    const int again = (int)att::opaque(item), lastHead = again % b.kvHeads;
    const int *entry = entries + 2 * (tiles - 1 - again / b.kvHeads);
    const int outRow = entry[0], outRows = entry[1];
#pragma unroll
    for (int r = 0; r < 4; r++) {
      total[r] += att::shuffleXor(total[r], 1);
      total[r] += att::shuffleXor(total[r], 2);
      const int m = warp * 32 + r * 8 + g, x = r >> 1, c = (r & 1) * 2;
      float scale = 1.f;
      if (b.sinks != nullptr && m / group < outRows) {
        const float sink = b.sinks[lastHead * group + m % group] * att::LOG2_E, top = fmaxf(most[r], sink);
        scale = att::power2(most[r] - top);
        total[r] = total[r] * scale + att::power2(sink - top);
      }
      scale /= total[r];
#pragma unroll
      for (int d = 0; d < HD / 8; d++)
        *reinterpret_cast<unsigned *>(shared + m * L::ROW_BYTES + ((d ^ (m & 7)) << 4) + 4 * t) =
            att::pack(sums[x][d][c] * scale, sums[x][d][c + 1] * scale);
    }
    att::warpBarrier();
#pragma unroll
    for (int k = 0; k < L::CHUNKS; k++) {
      const int m = warp * 32 + k * (32 / L::CHUNKS) + lane / L::CHUNKS, c = lane % L::CHUNKS;
      const int row = m / group, head = m - row * group;
      if (row < outRows)
        *reinterpret_cast<att::Quad *>(b.out + (long long)(outRow + row) * b.outStride + (lastHead * group + head) * HD + c * 8) =
            *reinterpret_cast<const att::Quad *>(shared + m * L::ROW_BYTES + ((c ^ (m & 7)) << 4));
    }
    att::waitCopies<0>();
    att::blockBarrier(); // shared memory is free for the next tile
  }
}

} // namespace prefill

extern "C" __global__ void __launch_bounds__(128, 2) attention_prefill_64(ATT_PARAMETERS) {
  att::waitForEarlierKernels();
  const att::Batch batch = {ATT_ARGUMENTS};
  prefill::attend<64>(batch);
}

extern "C" __global__ void __launch_bounds__(128, 2) attention_prefill_128(ATT_PARAMETERS) {
  att::waitForEarlierKernels();
  const att::Batch batch = {ATT_ARGUMENTS};
  prefill::attend<128>(batch);
}
