// The last token that top-k or top-p leaves, for rows whose tokens crowd in few bins: radix selection on logits as ordered words, 8
// bits a pass, by one block. Nothing is listed or sorted, so it takes any row; it is slow (times of version 1 in sample.cu).
#pragma once
#include "sample_row.cuh"

namespace sampling {

constexpr int COPIES = 8;

struct Selection {
  u64 bins[256 * COPIES];
  u64 folded[256];
  unsigned present[256];
  u64 left;
  unsigned digit, found;
};

// The digit of the last token that stays, from histograms of one pass, highest digit first: by weight, the last digit with
// tokens before which there is at most `left`; by count, the first at which the count reaches `left`. Takes what lies
// before it off `left`.
DEVICE void selectDigit(Selection &s, bool byWeight) {
  __syncthreads();
  if (threadIdx.x < 256) {
    u64 sum = 0;
    for (int i = 0; i < COPIES; i++) sum += s.bins[threadIdx.x * COPIES + i];
    s.folded[threadIdx.x] = sum;
  }
  __syncthreads();
  if (threadIdx.x < 32) {
    const int lane = threadIdx.x, high = 255 - 8 * lane;
    const u64 left = s.left;
    u64 sum = 0;
    for (int i = 0; i < 8; i++) sum += s.folded[high - i];
    u64 upTo = sum;
#pragma unroll
    for (int d = 1; d < 32; d <<= 1) {
      const u64 other = __shfl_up_sync(0xffffffffu, upTo, d);
      if (lane >= d) upTo += other;
    }
    u64 before = upTo - sum, mine = 0;
    int digit = -1;
    for (int i = 0; i < 8; i++) {
      const u64 here = s.folded[high - i];
      const bool take = byWeight ? s.present[high - i] && before <= left : digit < 0 && before < left && before + here >= left;
      if (take) digit = high - i, mine = before;
      before += here;
    }
    const unsigned have = __ballot_sync(0xffffffffu, digit >= 0);
    // By weight the last such digit counts; by count there is one at most.
    if (have == 0) {
      if (lane == 0) s.found = 0;
    } else if (lane == 31 - __clz(have)) {
      s.digit = digit, s.left = left - mine, s.found = 1;
    }
  }
  __syncthreads();
}

DEVICE void clear(Selection &s) {
  __syncthreads();
  for (int i = threadIdx.x; i < 256 * COPIES; i += THREADS) s.bins[i] = 0;
  if (threadIdx.x < 256) s.present[threadIdx.x] = 0;
  __syncthreads();
}

// Among tokens that stay by `cut` and whose logit has the key `key`: the id of the one at place `count` from 1, lowest first.
DEVICE int idAtPlace(Selection &s, const Row &row, const Cut &cut, unsigned key, u64 count) {
  unsigned prefix = 0, mask = 0;
  if (threadIdx.x == 0) s.left = count;
  for (int shift = 16; shift >= 0; shift -= 8) {
    clear(s);
    for (int v = threadIdx.x; v < row.vocab; v += THREADS) {
      if (orderOf(row.x[v]) != key || !stays(cut, key, v)) continue;
      const unsigned turned = 0xffffffu - (unsigned)v;
      if ((turned & mask) == prefix) atomicAdd(&s.bins[(turned >> shift & 255u) * COPIES + (lane_id() & (COPIES - 1))], 1ull);
    }
    selectDigit(s, false);
    if (!s.found) return NOWHERE; // fewer than that
    prefix |= s.digit << shift;
    mask |= 255u << shift;
  }
  return (int)(0xffffffu - prefix);
}

DEVICE Cut topK(Selection &s, const Row &row, u64 k) {
  const Cut all = everything();
  unsigned prefix = 0, mask = 0;
  if (threadIdx.x == 0) s.left = k;
  for (int shift = 24; shift >= 0; shift -= 8) {
    clear(s);
    for (int v = threadIdx.x; v < row.vocab; v += THREADS) {
      const unsigned key = orderOf(row.x[v]);
      if (key > 1u && (key & mask) == prefix) atomicAdd(&s.bins[(key >> shift & 255u) * COPIES + (lane_id() & (COPIES - 1))], 1ull);
    }
    selectDigit(s, false);
    if (!s.found) return all;
    prefix |= s.digit << shift;
    mask |= 255u << shift;
  }
  const u64 left = s.left;
  __syncthreads();
  return {prefix, idAtPlace(s, row, all, prefix, left)};
}

DEVICE Cut topP(Selection &s, const Row &row, const Cut &cut, float p) {
  u64 total = 0;
  for (int v = threadIdx.x; v < row.vocab; v += THREADS) {
    const float x = row.x[v];
    if (stays(cut, orderOf(x), v)) total += massOf(row, x);
  }
#pragma unroll
  for (int d = 16; d > 0; d >>= 1) total += __shfl_xor_sync(0xffffffffu, total, d);
  __syncthreads();
  if (threadIdx.x == 0) s.left = 0;
  __syncthreads();
  if (lane_id() == 0) atomicAdd(&s.left, total);
  __syncthreads();
  if (threadIdx.x == 0) s.left = shareOf(p, s.left);
  unsigned prefix = 0, mask = 0;
  for (int shift = 24; shift >= 0; shift -= 8) {
    clear(s);
    for (int v = threadIdx.x; v < row.vocab; v += THREADS) {
      const float x = row.x[v];
      const unsigned key = orderOf(x);
      if (!stays(cut, key, v) || (key & mask) != prefix) continue;
      const unsigned digit = key >> shift & 255u;
      s.present[digit] = 1;
      const u64 mass = massOf(row, x);
      if (mass) atomicAdd(&s.bins[digit * COPIES + (lane_id() & (COPIES - 1))], mass);
    }
    selectDigit(s, true);
    if (!s.found) return cut;
    prefix |= s.digit << shift;
    mask |= 255u << shift;
  }
  const u64 left = s.left, mass = massOf(row, numberOf(prefix));
  __syncthreads();
  // Equal logits: as many stay as have at most `left` before them.
  const Cut equal = {prefix, prefix == cut.key ? cut.id : NOWHERE};
  if (mass == 0) return equal;
  const int id = idAtPlace(s, row, equal, prefix, left / mass + 1);
  return {prefix, id == NOWHERE ? equal.id : id};
}

} // namespace sampling
