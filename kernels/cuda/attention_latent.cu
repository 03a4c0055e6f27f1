// attention_latent_{16x32,64x32,64x64}: multi-head latent attention in absorbed form over a paged cache; bf16 in and out.
//
// q [rows, heads * 576], kv [slots, 512 latent | 64 rope], out [rows, heads * 512]: one key a position for all heads, whose first
// 512 elements are the value. Names: query heads of a block (the M side) x keys of a tile. Grid: (rows, tiles of heads, parts); 256 threads.
// Every row is taken by itself, in decode and in prompts. Parts as in attention_decode.cu, but they are merged by a second kernel,
// attention_latent_merge_*, a block a head: a part is 32 or 128 KB, too much for one block to read of many.
//
// Keys come by cp.async into two stages and serve both products. Scores: 8 warps lie (M / 16) x (128 / M) over M heads x keys; the
// maxima of a head are shared through shared memory, then probabilities (bf16) too. Sums: each warp holds 64 of the 512 columns
// for all M heads, so every value is read once. 16-byte chunk c of a row lies at c ^ (row & 7).
//
// Bound: 1,152 bytes a position for every 16 or 64 heads (from L2 where tiles of heads or rows of a prompt share it); at 128 heads the
// products (heads * 2,176 operations a position).
// Times (H200, context 1,024): 16 heads x 128 rows 61.5 us (limit 37.9), 128 heads x 128 rows 188 (45.5), prompt of 2,048 with 128 heads
// 2.76 ms, 212 TFLOP/s. First version merged all parts of a row in its last block: 1 row took 27.7 us at 16 heads and 49.7 at 128.
#include "attention_batch.cuh"

namespace latent {

using att::Batch;

constexpr int WIDTH = 576, VALUE = 512, WARPS = 8;
constexpr int CHUNKS = WIDTH / 8, ROW_BYTES = WIDTH * 2;
constexpr int COLUMNS = VALUE / WARPS; // of a warp's sums

template <int M, int KEYS> struct Layout {
  static constexpr int WARPS_M = M / 16, WARPS_N = WARPS / WARPS_M;
  // 8-key pieces of a warp's scores; where there are fewer pieces than warps, some warps have none.
  static constexpr int PIECES = KEYS / 8 > WARPS_N ? KEYS / 8 / WARPS_N : 1;
  static constexpr int QUERY_BYTES = M * ROW_BYTES, STAGE_BYTES = KEYS * ROW_BYTES;
  static constexpr int WEIGHTS = QUERY_BYTES + 2 * STAGE_BYTES, WEIGHT_ROW = KEYS * 2; // probabilities [M][KEYS]
  // Floats: maxima of a tile by warp column [WARPS_N][M], totals alike, factors of the old sums [M], maxima so far [M].
  static constexpr int FLOATS = WEIGHTS + M * WEIGHT_ROW;
  static constexpr int BYTES = FLOATS + (2 * WARPS_N + 2) * M * 4;
  static constexpr int PART_FLOATS = M * VALUE + 2 * M; // a part in memory: sums [M][VALUE], maxima [M], totals [M]

  // Where chunk c of a row of probabilities lies: eight rows that ldmatrix reads together fall on different banks.
  static ATT_DEVICE int weightChunk(int row, int c) { return row * WEIGHT_ROW + ((KEYS == 64 ? c ^ (row & 7) : c ^ ((row >> 1) & 3)) << 4); }
};

// This warp's KEYS / 8 keys of a tile. `slot` is of the warp's key number `lane`, -1 beyond the end.
template <int KEYS> ATT_DEVICE void ask(const Batch &b, int slot, unsigned stage, int warp, int lane) {
  constexpr int MINE = KEYS / WARPS;
#pragma unroll
  for (int i = 0; i < MINE * CHUNKS / 32; i++) {
    const int at = i * 32 + lane, local = at / CHUNKS, c = at - local * CHUNKS, key = warp * MINE + local;
    const int s = att::shuffle(slot, local);
    att::copy16(stage + key * ROW_BYTES + ((c ^ (key & 7)) << 4), b.kv + (long long)(s < 0 ? 0 : s) * b.kvStride + b.keyOffset + c * 8,
                s < 0 ? 0 : 16);
  }
}

// 1 / total of a head with its sink joined, times the factor that its sums then need.
ATT_DEVICE float finalScale(const Batch &b, int head, float most, float total) {
  if (b.sinks == nullptr) return 1.f / total;
  const float sink = b.sinks[head] * att::LOG2_E, top = fmaxf(most, sink);
  const float scale = att::power2(most - top);
  return scale / (total * scale + att::power2(sink - top));
}

template <int M, int KEYS> ATT_DEVICE void attend(const Batch &b) {
  using L = Layout<M, KEYS>;
  ATT_DYNAMIC_SHARED(shared);
  const int thread = threadIdx.x, warp = thread >> 5, lane = thread & 31, g = lane >> 2, t = lane & 3, j = lane >> 3, i = lane & 7;
  const unsigned queries = att::sharedAddress(shared), stages = queries + L::QUERY_BYTES, weights = queries + L::WEIGHTS;
  float *tileMost = reinterpret_cast<float *>(shared + L::FLOATS);
  float *totals = tileMost + L::WARPS_N * M, *factor = totals + L::WARPS_N * M, *mostSoFar = factor + M;
  const int warpM = warp % L::WARPS_M, warpN = warp / L::WARPS_M;
  const int firstKey = warpN * L::PIECES * 8;
  const bool scores = firstKey < KEYS;

  const int firstHead = blockIdx.y * M, heads = min(M, b.groupHeads - firstHead);
  const int items = b.plan != nullptr ? b.plan[0] : b.rows;
  for (int item = blockIdx.x; item < items; item += gridDim.x) {
    const int row = b.plan != nullptr ? b.plan[4 + item] : item;
    const int sequence = b.rowSequence[(long long)row * b.rowSequenceStride], position = b.positions[(long long)row * b.positionStride];
    att::bf16_bits *out = b.out + (long long)row * b.outStride + firstHead * VALUE;
    const int splits = item < (int)gridDim.x ? b.splits : 1; // as in attention_decode.cu
    if ((int)blockIdx.z >= splits) continue;
    if (sequence < 0 || position < 0) {
      if (blockIdx.z == 0)
        for (int k = thread; k < heads * VALUE; k += WARPS * 32) out[k] = 0;
      continue;
    }
    const int start = position - b.window + 1 > 0 ? position - b.window + 1 : 0;
    const int tiles = (position + 1 - start + KEYS - 1) / KEYS;
    const int tilesAPart = max(b.minTiles, (tiles + splits - 1) / splits);
    const int parts = (tiles + tilesAPart - 1) / tilesAPart;
    if ((int)blockIdx.z >= parts) continue;
    const int from = start + blockIdx.z * tilesAPart * KEYS;
    const int end = min(position + 1, from + tilesAPart * KEYS);
    const int turns = (end - from + KEYS - 1) / KEYS;
    const int pages = sequence * b.tableStride;
    auto slotOf = [&](int turn) {
      const int key = from + turn * KEYS + warp * (KEYS / WARPS) + lane;
      return lane < KEYS / WARPS && key < end ? b.slot(pages, key) : -1;
    };

    const int firstSlot = slotOf(0);
    {
      const att::bf16_bits *query = b.q + (long long)row * b.qStride + (long long)firstHead * WIDTH;
      for (int k = thread; k < M * CHUNKS; k += WARPS * 32) {
        const int m = k / CHUNKS, c = k - m * CHUNKS;
        att::copy16(queries + m * ROW_BYTES + ((c ^ (m & 7)) << 4), query + (m < heads ? m : 0) * WIDTH + c * 8, m < heads ? 16 : 0);
      }
    }
    ask<KEYS>(b, firstSlot, stages, warp, lane);
    att::commitCopies();
    int slot = slotOf(1);

    float sums[M / 16][COLUMNS / 8][4];
#pragma unroll
    for (int x = 0; x < M / 16; x++)
#pragma unroll
      for (int d = 0; d < COLUMNS / 8; d++)
#pragma unroll
        for (int c = 0; c < 4; c++) sums[x][d][c] = 0.f;
    // Of rows g and g + 8 of this warp's 16 heads: the maximum of all keys so far, the total of its own keys' probabilities.
    float most[2] = {ATT_NOTHING, ATT_NOTHING}, total[2] = {0.f, 0.f};

    for (int turn = 0; turn < turns; turn++) {
      const unsigned stage = stages + (turn & 1) * L::STAGE_BYTES;
      att::waitCopies<0>();
      att::blockBarrier(); // the stage has landed for all; all are done with the other one, with probabilities and factors
      if (turn + 1 < turns) ask<KEYS>(b, slot, stages + ((turn + 1) & 1) * L::STAGE_BYTES, warp, lane);
      att::commitCopies();
      slot = slotOf(turn + 2);

      // Scores of 16 heads x PIECES * 8 keys; even and odd steps apart, so that the products form two chains.
      float s[L::PIECES][2][4];
#pragma unroll
      for (int p = 0; p < L::PIECES; p++)
#pragma unroll
        for (int e = 0; e < 2; e++)
#pragma unroll
          for (int c = 0; c < 4; c++) s[p][e][c] = 0.f;
      if (scores) {
        const unsigned queryRow = queries + (warpM * 16 + (j & 1) * 8 + i) * ROW_BYTES;
        const unsigned keyRow = stage + (firstKey + i) * ROW_BYTES;
#pragma unroll 2
        for (int step = 0; step < WIDTH / 32; step++) {
          unsigned q[2][4];
          att::loadMatrices(q[0], queryRow + (((4 * step + (j >> 1)) ^ i) << 4));
          att::loadMatrices(q[1], queryRow + (((4 * step + 2 + (j >> 1)) ^ i) << 4));
#pragma unroll
          for (int p = 0; p < L::PIECES; p++) {
            unsigned k[4]; // matrix j: 8 keys of chunk j of the step: b0, b1 of dims 0-15, b0, b1 of dims 16-31
            att::loadMatrices(k, keyRow + p * 8 * ROW_BYTES + (((4 * step + j) ^ i) << 4));
            att::multiply(s[p][0], q[0], k[0], k[1]);
            att::multiply(s[p][1], q[1], k[2], k[3]);
          }
        }
      }
      const int valid = scores ? end - (from + turn * KEYS) - firstKey : 0;
      float top[2] = {ATT_NOTHING, ATT_NOTHING};
#pragma unroll
      for (int p = 0; p < L::PIECES; p++)
#pragma unroll
        for (int c = 0; c < 4; c++) {
          const float x = p * 8 + 2 * t + (c & 1) < valid ? (s[p][0][c] + s[p][1][c]) * b.scaleLog2 : ATT_NOTHING;
          s[p][0][c] = x;
          top[c >> 1] = fmaxf(top[c >> 1], x);
        }
#pragma unroll
      for (int half = 0; half < 2; half++) {
        top[half] = fmaxf(top[half], att::shuffleXor(top[half], 1));
        top[half] = fmaxf(top[half], att::shuffleXor(top[half], 2));
        if (t == 0) tileMost[warpN * M + warpM * 16 + half * 8 + g] = top[half];
      }
      att::blockBarrier(); // maxima of all warps
#pragma unroll
      for (int half = 0; half < 2; half++) {
        const int m = warpM * 16 + half * 8 + g;
        float now = most[half];
#pragma unroll
        for (int n = 0; n < L::WARPS_N; n++) now = fmaxf(now, tileMost[n * M + m]); // finite: key 0 of every tile counts
        const float keep = att::power2(most[half] - now);
        most[half] = now;
        if (warpN == 0 && t == 0) factor[m] = keep;
        total[half] *= keep;
#pragma unroll
        for (int p = 0; p < L::PIECES; p++) {
          const float a = att::power2(s[p][0][2 * half] - now), c = att::power2(s[p][0][2 * half + 1] - now);
          total[half] += a + c;
          if (scores)
            *reinterpret_cast<unsigned *>(shared + L::WEIGHTS + L::weightChunk(m, firstKey / 8 + p) + 4 * t) = att::pack(a, c);
        }
      }
      att::blockBarrier(); // probabilities and factors of all warps
#pragma unroll
      for (int x = 0; x < M / 16; x++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
          const float keep = factor[x * 16 + half * 8 + g];
#pragma unroll
          for (int d = 0; d < COLUMNS / 8; d++) {
            sums[x][d][2 * half] *= keep;
            sums[x][d][2 * half + 1] *= keep;
          }
        }
#pragma unroll
      for (int n = 0; n < KEYS / 16; n++) {
        unsigned p[M / 16][4];
#pragma unroll
        for (int x = 0; x < M / 16; x++) att::loadMatrices(p[x], weights + L::weightChunk(x * 16 + (j & 1) * 8 + i, 2 * n + (j >> 1)));
        const unsigned valueRow = stage + (n * 16 + (j & 1) * 8 + i) * ROW_BYTES;
#pragma unroll
        for (int d = 0; d < COLUMNS / 16; d++) {
          unsigned v[4];
          att::loadMatricesTransposed(v, valueRow + (((warp * (COLUMNS / 8) + 2 * d + (j >> 1)) ^ i) << 4));
#pragma unroll
          for (int x = 0; x < M / 16; x++) {
            att::multiply(sums[x][2 * d], p[x], v[0], v[1]);
            att::multiply(sums[x][2 * d + 1], p[x], v[2], v[3]);
          }
        }
      }
    }

#pragma unroll
    for (int half = 0; half < 2; half++) {
      total[half] += att::shuffleXor(total[half], 1);
      total[half] += att::shuffleXor(total[half], 2);
      const int m = warpM * 16 + half * 8 + g;
      if (t == 0) totals[warpN * M + m] = total[half];
      if (t == 0 && warpN == 0) mostSoFar[m] = most[half];
    }
    att::waitCopies<0>();
    att::blockBarrier();
    const long long pair = (long long)item * gridDim.y + blockIdx.y;
    float *part = b.partials + (pair * splits + blockIdx.z) * L::PART_FLOATS;
    if (thread < heads) {
      float sum = 0.f;
#pragma unroll
      for (int n = 0; n < L::WARPS_N; n++) sum += totals[n * M + thread];
      if (parts == 1) {
        factor[thread] = finalScale(b, firstHead + thread, mostSoFar[thread], sum);
      } else {
        part[M * VALUE + thread] = mostSoFar[thread];
        part[M * VALUE + M + thread] = sum;
      }
    }
    att::blockBarrier();
#pragma unroll
    for (int x = 0; x < M / 16; x++)
#pragma unroll
      for (int half = 0; half < 2; half++) {
        const int m = x * 16 + half * 8 + g;
        if (m >= heads) continue;
        const int column = warp * COLUMNS + 2 * t;
        const float scale = parts == 1 ? factor[m] : 1.f;
#pragma unroll
        for (int d = 0; d < COLUMNS / 8; d++) {
          const float a = sums[x][d][2 * half] * scale, c = sums[x][d][2 * half + 1] * scale;
          if (parts == 1) *reinterpret_cast<unsigned *>(out + m * VALUE + column + d * 8) = att::pack(a, c);
          else *reinterpret_cast<float2 *>(part + m * VALUE + column + d * 8) = make_float2(a, c);
        }
      }
    att::blockBarrier(); // shared memory is free for the next item
  }
}

// Merges the parts of one head of a row, those of `attend` with the same grid of rows. Grid: (rows, heads); 128 threads of 4 columns.
template <int M, int KEYS> ATT_DEVICE void merge(const Batch &b) {
  using L = Layout<M, KEYS>;
  const int item = blockIdx.x, head = blockIdx.y, piece = head / M, m = head % M, pieces = (b.groupHeads + M - 1) / M;
  const int sequence = b.rowSequence[(long long)item * b.rowSequenceStride], position = b.positions[(long long)item * b.positionStride];
  if (sequence < 0 || position < 0) return;
  const int start = position - b.window + 1 > 0 ? position - b.window + 1 : 0;
  const int tiles = (position + 1 - start + KEYS - 1) / KEYS;
  const int tilesAPart = max(b.minTiles, (tiles + b.splits - 1) / b.splits);
  const int parts = (tiles + tilesAPart - 1) / tilesAPart;
  if (parts == 1) return;
  const float *all = b.partials + ((long long)item * pieces + piece) * b.splits * L::PART_FLOATS;
  const int column = 4 * (int)threadIdx.x;
  att::Merged merged;
  merged.addAll(all + m * VALUE + column, all + M * VALUE + m, all + M * VALUE + M + m, L::PART_FLOATS, parts);
  att::finish(b, b.out + (long long)item * b.outStride + head * VALUE + column, merged.sum, merged.most, merged.total, head);
}

} // namespace latent

extern "C" __global__ void __launch_bounds__(256, 2) attention_latent_16x32(ATT_PARAMETERS) {
  att::waitForEarlierKernels();
  const att::Batch batch = {ATT_ARGUMENTS};
  latent::attend<16, 32>(batch);
}

extern "C" __global__ void __launch_bounds__(256, 1) attention_latent_64x32(ATT_PARAMETERS) {
  att::waitForEarlierKernels();
  const att::Batch batch = {ATT_ARGUMENTS};
  latent::attend<64, 32>(batch);
}

extern "C" __global__ void __launch_bounds__(256, 1) attention_latent_64x64(ATT_PARAMETERS) {
  att::waitForEarlierKernels();
  const att::Batch batch = {ATT_ARGUMENTS};
  latent::attend<64, 64>(batch);
}

extern "C" __global__ void __launch_bounds__(128) attention_latent_merge_16x32(ATT_PARAMETERS) {
  att::waitForEarlierKernels();
  const att::Batch batch = {ATT_ARGUMENTS};
  latent::merge<16, 32>(batch);
}

extern "C" __global__ void __launch_bounds__(128) attention_latent_merge_64x32(ATT_PARAMETERS) {
  att::waitForEarlierKernels();
  const att::Batch batch = {ATT_ARGUMENTS};
  latent::merge<64, 32>(batch);
}

extern "C" __global__ void __launch_bounds__(128) attention_latent_merge_64x64(ATT_PARAMETERS) {
  att::waitForEarlierKernels();
  const att::Batch batch = {ATT_ARGUMENTS};
  latent::merge<64, 64>(batch);
}
