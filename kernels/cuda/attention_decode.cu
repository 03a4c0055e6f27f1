// attention_decode_{64,128}: attention of single rows over a paged cache, keys cut into parts (split-KV); bf16 in and out.
//
// q [rows, heads * HD], kv [slots, K heads * HD | V heads * HD], out [rows, heads * HD]. Grid: (rows or fewer, KV heads * tiles of 16
// query heads, parts); 128 threads. The grid knows nothing of context lengths: a block reads its row's position, and blocks of parts that the
// context does not reach leave at once.
//
// A block takes the (up to 16) query heads that share a KV head as the M side of mma.m16n8k16. Each of its 4 warps walks its own keys, 16
// of every 64, through its own ring of STAGES x (16 keys + 16 values) in shared memory filled by cp.async: between warps there is no
// barrier before the end. Keys are the B operand as they lie (ldmatrix), the probabilities' C fragment is the A fragment of the
// second product, values are its B operand through ldmatrix.trans. At the end the 4 warps' sums are merged in shared memory. With several parts
// the block that finishes last (a counter a row and KV head, put back to zero) merges them in ascending order, so bits do not depend on timing.
// A 16-byte chunk c of a key or value lies at chunk c ^ (key & 7): no bank conflicts for cp.async or ldmatrix.
//
// Bound: bytes of K and V once, 512 * context * KV heads a row at HD 128. Compute is below 15% of that time.
// Versions and times (H200, 32 heads over 4 of 128, context 512, in graphs; limits at 4.1 TB/s: 0.3, 8.3, 33.2, 66.5 us, and 65.5 for 8,192):
//   1. the last block reads maxima and totals of all parts before any sums: 1 row 8.0 us, 32 rows 14.9, 128 rows 40.5, 256 rows 77.2; 16 rows of
//      8,192 70.8.
//   2. eight parts under way at a time, launches that overlap: 6.1, 13.7, 40.5, 79.4; 71.8.
#include "attention_batch.cuh"

namespace {

using att::Batch;

constexpr int WARPS = 4, KEYS = 16, TILE = WARPS * KEYS, STAGES = 3;

template <int HD> struct Layout {
  static constexpr int CHUNKS = HD / 8;              // 16-byte chunks of a key
  static constexpr int ROW_BYTES = HD * 2;
  static constexpr int STAGE_BYTES = 2 * KEYS * ROW_BYTES; // keys, then values
  static constexpr int RING_BYTES = STAGES * STAGE_BYTES;
  static constexpr int SUM_STRIDE = HD + 8;          // floats; +8 keeps rows of float2 stores in different banks
  static constexpr int PART_FLOATS = 16 * HD + 32;   // a part in memory: sums [16][HD], maxima [16], totals [16]
};

// One warp's walk over its keys: running maximum, total and sums of rows g and g + 8.
template <int HD> struct Walk {
  using L = Layout<HD>;
  float sums[HD / 8][4];
  float most[2], total[2];
  unsigned query[HD / 16][4];
};

// Asks for 16 keys and values from `first` on, those below `end`, into one stage of the ring. `slot` is of key first + (lane & 15),
// -1 beyond the end.
template <int HD> ATT_DEVICE void ask(const Batch &b, int kvHead, int slot, unsigned stage, int lane) {
  using L = Layout<HD>;
  constexpr int KEYS_AT_ONCE = 32 / L::CHUNKS;
  const int c = lane % L::CHUNKS;
  const att::bf16_bits *column = b.kv + kvHead * HD + c * 8;
#pragma unroll
  for (int i = 0; i < KEYS / KEYS_AT_ONCE; i++) {
    const int key = i * KEYS_AT_ONCE + lane / L::CHUNKS;
    const int s = att::shuffle(slot, key);
    const att::bf16_bits *row = column + (long long)(s < 0 ? 0 : s) * b.kvStride;
    const unsigned to = stage + key * L::ROW_BYTES + ((c ^ (key & 7)) << 4);
    att::copy16(to, row + b.keyOffset, s < 0 ? 0 : 16);
    att::copy16(to + KEYS * L::ROW_BYTES, row + b.valueOffset, s < 0 ? 0 : 16);
  }
}

// Takes in the 16 keys of a stage, of which `valid` > 0 count.
template <int HD> ATT_DEVICE void take(Walk<HD> &w, unsigned stage, int valid, float scaleLog2, int lane) {
  using L = Layout<HD>;
  const int j = lane >> 3, i = lane & 7, t = lane & 3;
  float s[2][4] = {{0.f, 0.f, 0.f, 0.f}, {0.f, 0.f, 0.f, 0.f}};
  {
    // Matrices 0, 1: keys 0-7, dims 0-7 and 8-15 of the step: b0 and b1 of the first 8 keys. 2, 3: the same of keys 8-15.
    const unsigned row = stage + ((j >> 1) * 8 + i) * L::ROW_BYTES;
#pragma unroll
    for (int step = 0; step < HD / 16; step++) {
      unsigned k[4];
      att::loadMatrices(k, row + (((2 * step + (j & 1)) ^ i) << 4));
      att::multiply(s[0], w.query[step], k[0], k[1]);
      att::multiply(s[1], w.query[step], k[2], k[3]);
    }
  }
#pragma unroll
  for (int n = 0; n < 2; n++)
#pragma unroll
    for (int c = 0; c < 4; c++) {
      const int key = n * 8 + 2 * t + (c & 1);
      s[n][c] = key < valid ? s[n][c] * scaleLog2 : ATT_NOTHING;
    }
#pragma unroll
  for (int half = 0; half < 2; half++) {
    float most = fmaxf(fmaxf(s[0][2 * half], s[0][2 * half + 1]), fmaxf(s[1][2 * half], s[1][2 * half + 1]));
    most = fmaxf(most, att::shuffleXor(most, 1));
    most = fmaxf(most, att::shuffleXor(most, 2));
    most = fmaxf(most, w.most[half]); // finite: key 0 counts
    const float keep = att::power2(w.most[half] - most);
    w.most[half] = most;
    w.total[half] *= keep;
#pragma unroll
    for (int n = 0; n < 2; n++)
#pragma unroll
      for (int c = 0; c < 2; c++) {
        const float p = att::power2(s[n][2 * half + c] - most);
        s[n][2 * half + c] = p;
        w.total[half] += p;
      }
#pragma unroll
    for (int d = 0; d < HD / 8; d++) {
      w.sums[d][2 * half] *= keep;
      w.sums[d][2 * half + 1] *= keep;
    }
  }
  const unsigned p[4] = {att::pack(s[0][0], s[0][1]), att::pack(s[0][2], s[0][3]), att::pack(s[1][0], s[1][1]),
                         att::pack(s[1][2], s[1][3])};
  // Matrices 0, 1: keys 0-7 and 8-15 of dims 0-7: b0 and b1 of the first 8 dims. 2, 3: the same of dims 8-15.
  const unsigned row = stage + KEYS * L::ROW_BYTES + ((j & 1) * 8 + i) * L::ROW_BYTES;
#pragma unroll
  for (int d = 0; d < HD / 16; d++) {
    unsigned v[4];
    att::loadMatricesTransposed(v, row + (((2 * d + (j >> 1)) ^ i) << 4));
    att::multiply(w.sums[2 * d], p, v[0], v[1]);
    att::multiply(w.sums[2 * d + 1], p, v[2], v[3]);
  }
}

template <int HD> ATT_DEVICE void decode(const Batch &b) {
  using L = Layout<HD>;
  ATT_DYNAMIC_SHARED(shared);
  __shared__ int lastOfAll;
  float *sums = reinterpret_cast<float *>(shared);                    // [WARPS][16][SUM_STRIDE], over the rings once they are read
  float *warpMost = sums + WARPS * 16 * L::SUM_STRIDE;                // [WARPS][16]
  float *warpTotal = warpMost + WARPS * 16;                           // [WARPS][16]
  const int thread = threadIdx.x, warp = thread >> 5, lane = thread & 31, g = lane >> 2, t = lane & 3;
  const unsigned ring = att::sharedAddress(shared) + warp * L::RING_BYTES;

  const int headTiles = (b.groupHeads + 15) / 16;
  const int kvHead = blockIdx.y / headTiles, firstHead = kvHead * b.groupHeads + (blockIdx.y % headTiles) * 16;
  const int heads = min(16, (kvHead + 1) * b.groupHeads - firstHead);
  const int items = b.plan != nullptr ? b.plan[0] : b.rows;

  for (int item = blockIdx.x; item < items; item += gridDim.x) {
    const int row = b.plan != nullptr ? b.plan[4 + item] : item;
    const int sequence = b.rowSequence[(long long)row * b.rowSequenceStride], position = b.positions[(long long)row * b.positionStride];
    att::bf16_bits *out = b.out + (long long)row * b.outStride + firstHead * HD;
    // Partial results and counters exist for the first gridDim.x items; later ones (few, if any) are not cut.
    const int splits = item < (int)gridDim.x ? b.splits : 1;
    if ((int)blockIdx.z >= splits) continue;
    if (sequence < 0 || position < 0) {
      if (blockIdx.z == 0)
        for (int i = thread; i < heads * HD; i += WARPS * 32) out[i] = 0;
      continue;
    }
    const int start = position - b.window + 1 > 0 ? position - b.window + 1 : 0;
    const int tiles = (position + 1 - start + TILE - 1) / TILE;
    const int tilesAPart = max(b.minTiles, (tiles + splits - 1) / splits);
    const int parts = (tiles + tilesAPart - 1) / tilesAPart;
    if ((int)blockIdx.z >= parts) continue;
    const int from = start + blockIdx.z * tilesAPart * TILE + warp * KEYS;
    const int end = min(position + 1, start + ((int)blockIdx.z + 1) * tilesAPart * TILE);
    const int turns = from < end ? (end - from + TILE - 1) / TILE : 0; // of this warp
    const int pages = sequence * b.tableStride;
    const int myKey = lane & 15;
    auto slotOf = [&](int turn) {
      const int key = from + turn * TILE + myKey;
      return turn < turns && key < end ? b.slot(pages, key) : -1;
    };

    int slot = slotOf(0);
    Walk<HD> w;
    {
      // Rows of the A operand are heads; those beyond `heads` are zeros.
      const att::bf16_bits *query = b.q + (long long)row * b.qStride + firstHead * HD + 2 * t;
#pragma unroll
      for (int step = 0; step < HD / 16; step++)
#pragma unroll
        for (int r = 0; r < 4; r++) {
          const int head = g + (r & 1) * 8;
          w.query[step][r] = head < heads ? *reinterpret_cast<const unsigned *>(query + head * HD + step * 16 + (r >> 1) * 8) : 0u;
        }
    }
#pragma unroll
    for (int d = 0; d < HD / 8; d++)
#pragma unroll
      for (int c = 0; c < 4; c++) w.sums[d][c] = 0.f;
#pragma unroll
    for (int half = 0; half < 2; half++) {
      w.most[half] = ATT_NOTHING;
      w.total[half] = 0.f;
    }

#pragma unroll
    for (int turn = 0; turn < STAGES - 1; turn++) {
      if (turn < turns) ask<HD>(b, kvHead, slot, ring + turn * L::STAGE_BYTES, lane);
      att::commitCopies();
      slot = slotOf(turn + 1);
    }
    int stage = 0, free = STAGES - 1;
    for (int turn = 0; turn < turns; turn++) {
      att::waitCopies<STAGES - 2>();
      att::warpBarrier(); // every lane's copies of this stage have landed, and every lane has read the stage asked for next
      if (turn + STAGES - 1 < turns) ask<HD>(b, kvHead, slot, ring + free * L::STAGE_BYTES, lane);
      att::commitCopies();
      slot = slotOf(turn + STAGES);
      take<HD>(w, ring + stage * L::STAGE_BYTES, end - (from + turn * TILE), b.scaleLog2, lane);
      free = stage;
      stage = stage + 1 == STAGES ? 0 : stage + 1;
    }

    // Totals over the quad that shares a row.
#pragma unroll
    for (int half = 0; half < 2; half++) {
      w.total[half] += att::shuffleXor(w.total[half], 1);
      w.total[half] += att::shuffleXor(w.total[half], 2);
    }
    att::waitCopies<0>();
    att::blockBarrier(); // all rings are read
#pragma unroll
    for (int half = 0; half < 2; half++) {
      const int head = g + half * 8;
      if (head >= heads) continue;
      float *to = sums + (warp * 16 + head) * L::SUM_STRIDE + 2 * t;
#pragma unroll
      for (int d = 0; d < HD / 8; d++) *reinterpret_cast<float2 *>(to + d * 8) = make_float2(w.sums[d][2 * half], w.sums[d][2 * half + 1]);
      if (t == 0) {
        warpMost[warp * 16 + head] = w.most[half];
        warpTotal[warp * 16 + head] = w.total[half];
      }
    }
    att::blockBarrier();

    const long long pair = (long long)item * gridDim.y + blockIdx.y;
    float *part = b.partials + (pair * splits + blockIdx.z) * L::PART_FLOATS;
    for (int i = thread; i < heads * (HD / 4); i += WARPS * 32) {
      const int head = i / (HD / 4), column = i % (HD / 4) * 4;
      float most = warpMost[head];
#pragma unroll
      for (int v = 1; v < WARPS; v++) most = fmaxf(most, warpMost[v * 16 + head]); // finite: warp 0 has a key
      float4 sum = make_float4(0.f, 0.f, 0.f, 0.f);
      float total = 0.f;
#pragma unroll
      for (int v = 0; v < WARPS; v++) {
        const float weight = att::power2(warpMost[v * 16 + head] - most);
        const float4 x = *reinterpret_cast<const float4 *>(sums + (v * 16 + head) * L::SUM_STRIDE + column);
        sum.x += weight * x.x, sum.y += weight * x.y, sum.z += weight * x.z, sum.w += weight * x.w;
        total += weight * warpTotal[v * 16 + head];
      }
      if (parts == 1) {
        att::finish(b, out + head * HD + column, sum, most, total, firstHead + head);
      } else {
        *reinterpret_cast<float4 *>(part + head * HD + column) = sum;
        if (column == 0) {
          part[16 * HD + head] = most;
          part[16 * HD + 16 + head] = total;
        }
      }
    }
    if (parts > 1) {
      att::blockBarrier(); // the whole part is written
      if (thread == 0) {
        att::fence();
        const int done = att::addOne(b.counters + pair);
        lastOfAll = done == parts - 1;
        if (lastOfAll) b.counters[pair] = 0;
        att::fence();
      }
      att::blockBarrier();
      if (lastOfAll) {
        const float *all = b.partials + pair * splits * L::PART_FLOATS;
        for (int i = thread; i < heads * (HD / 4); i += WARPS * 32) {
          const int head = i / (HD / 4), column = i % (HD / 4) * 4;
          att::Merged merged;
          merged.addAll(all + head * HD + column, all + 16 * HD + head, all + 16 * HD + 16 + head, L::PART_FLOATS, parts);
          att::finish(b, out + head * HD + column, merged.sum, merged.most, merged.total, firstHead + head);
        }
      }
    }
    att::blockBarrier(); // shared memory is free for the next item
  }
}

} // namespace

extern "C" __global__ void __launch_bounds__(128, 2) attention_decode_64(ATT_PARAMETERS) {
  att::waitForEarlierKernels();
  const Batch batch = {ATT_ARGUMENTS};
  decode<64>(batch);
}

extern "C" __global__ void __launch_bounds__(128, 2) attention_decode_128(ATT_PARAMETERS) {
  att::waitForEarlierKernels();
  const Batch batch = {ATT_ARGUMENTS};
  decode<128>(batch);
}
