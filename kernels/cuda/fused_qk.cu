// What lies between a projection and attention, in one kernel: norms, rope, and the store into the paged cache.
//
// qk_norm_rope_store: x [rows, (heads + 2 * kvHeads) * headWidth] = queries, keys, values, f32 or bf16. Each head of queries
// and keys is normalised (weights given) and its first ropeWidth elements are rotated; queries stay in x, keys and values go
// to kv[slot] (keys of all heads, then values). Keys and values in x are left as they were.
// latent_norm_rope_store: x [rows, latent + ropeWidth]: the latent is normalised, the shared key rotated, both go to kv[slot].
// Rules: rmsNorm, rope and storeKv of src/device/ops.ts one after another, but for one thing: numbers stay in f32 between the
// steps, where separate operations round to the type of x after each. A negative slot stores nothing.
// Algorithm: qk_norm_rope_store_*_halves (_pairs for interleaved pairs): a lane holds 16 elements of a head, both elements of each of
// its pairs, so that neither norm nor rope goes through shared memory; 8 lanes hold a head of 128. A warp takes `steps` groups of
// heads of one row one after another, with the table of the row's position in registers and the next group under way. Heads and
// ropes of multiples of 16, addresses and strides of 16 bytes. qk_norm_rope_store_*_any takes all others: a warp a head, element
// by element, through shared memory for the rope's pairs. Latents: a block a row. cosSin as in rope.cu. Weights are read before
// the kernel waits for the one before it.
// Versions and times (H200, bf16, 32 query and 4 + 4 other heads of 128; 1, 32, 128, 16384 rows; memory alone 82 us for the last):
//   1. a warp a head, 4 elements a lane, room for heads of 512, pairs through shared memory: 2.0, 4.0, 10.1, 1358 us.
//      latent of 512 and 64: 2.0, 2.1, 2.2, 21.9 us.
//   2. 16 elements a lane: 1.5, 1.6, 2.1, 96 us; latents as before.
#include "elements.cuh"

namespace {

using namespace el;

constexpr int WARPS = 8, LANE_WARPS = 4, WIDEST_HEAD = 512;

// Element c (< width) of a rotated head that lies in `v`, by its pair's cosine and sine.
DEVICE float rotatedBy(const float *v, float cosine, float sine, int c, int width, int interleaved) {
  const int half = width / 2, i = c < half ? c : c - half;
  const float u = v[interleaved ? 2 * i : i], w = v[interleaved ? 2 * i + 1 : half + i];
  return c < half ? u * cosine - w * sine : w * cosine + u * sine;
}

// The same, with the table of the row's position.
DEVICE float rotated(const float *v, const float *cosSin, int c, int width, int interleaved) {
  const int half = width / 2, i = c < half ? c : c - half;
  return rotatedBy(v, cosSin[i], cosSin[half + i], c, width, interleaved);
}

// grid: ceil(rows * (heads + 2 * kvHeads) / 8), 256 threads. headWidth at most 512.
template <class T>
DEVICE void qkNormRopeStore(T *x, T *kv, const int *slots, const int *positions, const float *cosSin, const float *qWeight,
                            const float *kWeight, int *faults, int rows, int heads, int kvHeads, int headWidth,
                            int ropeWidth, int interleaved, float eps, int capacity, int tablePositions,
                            long long xStride, long long kvStride, long long slotStride, long long positionStride) {
  __shared__ float4 lines[WARPS][WIDEST_HEAD / 4];
  constexpr int V = 1, KEPT = WIDEST_HEAD / 32;
  allow_dependents();
  const int all = heads + 2 * kvHeads, lane = threadIdx.x & 31;
  const long long piece = (long long)blockIdx.x * WARPS + (threadIdx.x >> 5);
  if (piece >= (long long)rows * all) return;
  const long long row = piece / all;
  const int head = (int)(piece % all);
  const bool key = head >= heads, value = head >= heads + kvHeads;
  const float *weight = value ? nullptr : key ? kWeight : qWeight;
  float w[KEPT][V], part[KEPT][V], cosine[KEPT][V], sine[KEPT][V];
#pragma unroll
  for (int i = 0; i < KEPT; i++)
    if (weight && (i * 32 + lane) * V < headWidth) load<V>(weight + (i * 32 + lane) * V, w[i]);
  wait_for_predecessors();

  T *source = x + row * xStride + (long long)head * headWidth, *target = source;
  const int position = positions[row * positionStride], slot = key ? slots[row * slotStride] : 0;
  float squares = 0.f;
#pragma unroll
  for (int i = 0; i < KEPT; i++)
    if ((i * 32 + lane) * V < headWidth) load<V>(source + (i * 32 + lane) * V, part[i]);
  if (slot < 0) return;
  if (slot >= capacity) {
    if (lane == 0) fault(faults, FAULT_SLOT, slot);
    return;
  }
  if (key) target = kv + slot * kvStride + (long long)(head - heads) * headWidth;
  if (value) {
#pragma unroll
    for (int i = 0; i < KEPT; i++)
      if ((i * 32 + lane) * V < headWidth) store<V>(target + (i * 32 + lane) * V, part[i]);
    return;
  }
  if (position < 0 || position >= tablePositions) {
    if (lane == 0) fault(faults, FAULT_POSITION, position);
    return;
  }
  const float *table = cosSin + (long long)position * ropeWidth;
  const int half = ropeWidth / 2;
#pragma unroll
  for (int i = 0; i < KEPT; i++)
#pragma unroll
    for (int j = 0; j < V; j++) {
      const int c = (i * 32 + lane) * V + j, at = c < half ? c : c - half;
      if (c < ropeWidth) cosine[i][j] = table[at], sine[i][j] = table[half + at];
      if (c < headWidth) squares += part[i][j] * part[i][j];
    }
  float *v = reinterpret_cast<float *>(lines[threadIdx.x >> 5]);
  const float inverse = weight ? rsqrtf(warp_sum(squares) / (float)headWidth + eps) : 1.f;
#pragma unroll
  for (int i = 0; i < KEPT; i++) {
    const int c = (i * 32 + lane) * V;
    if (c >= headWidth) continue;
    if (weight) {
#pragma unroll
      for (int j = 0; j < V; j++) part[i][j] = part[i][j] * inverse * w[i][j];
    }
    store<V>(v + c, part[i]);
  }
  __syncwarp();
#pragma unroll
  for (int i = 0; i < KEPT; i++) {
    const int c = (i * 32 + lane) * V;
    if (c >= headWidth) continue;
#pragma unroll
    for (int j = 0; j < V; j++)
      if (c + j < ropeWidth) part[i][j] = rotatedBy(v, cosine[i][j], sine[i][j], c + j, ropeWidth, interleaved);
    store<V>(target + c, part[i]);
  }
}

// Eight elements as they lie in memory.
template <class T> struct Eight {
  uint4 q[sizeof(T) / 2];
};
template <class T> DEVICE void fetch(Eight<T> &e, const T *p) {
#pragma unroll
  for (int i = 0; i < (int)sizeof(T) / 2; i++) e.q[i] = reinterpret_cast<const uint4 *>(p)[i];
}
DEVICE void widen(const Eight<bf16> &e, float *v) {
  const uint4 q = e.q[0];
  v[0] = low_bf16(q.x), v[1] = high_bf16(q.x), v[2] = low_bf16(q.y), v[3] = high_bf16(q.y);
  v[4] = low_bf16(q.z), v[5] = high_bf16(q.z), v[6] = low_bf16(q.w), v[7] = high_bf16(q.w);
}
DEVICE void widen(const Eight<float> &e, float *v) {
#pragma unroll
  for (int i = 0; i < 2; i++) {
    const uint4 q = e.q[i];
    v[4 * i] = __uint_as_float(q.x), v[4 * i + 1] = __uint_as_float(q.y);
    v[4 * i + 2] = __uint_as_float(q.z), v[4 * i + 3] = __uint_as_float(q.w);
  }
}

// lanes = 1 << laneBits of a warp hold a head: the least power of two of at least headWidth / 16. A row's heads are taken in groups of
// 32 / lanes, `steps` groups a warp. grid: ceil(rows * ceil(ceil(all * lanes / 32) / steps) / 4), 128 threads.
template <class T, bool PAIRS>
DEVICE void qkByLanes(T *x, T *kv, const int *slots, const int *positions, const float *cosSin, const float *qWeight,
                      const float *kWeight, int *faults, int rows, int heads, int kvHeads, int headWidth, int ropeWidth,
                      int laneBits, int steps, float eps, int capacity, int tablePositions, long long xStride,
                      long long kvStride, long long slotStride, long long positionStride) {
  allow_dependents();
  const int all = heads + 2 * kvHeads, lane = threadIdx.x & 31, lanes = 1 << laneBits;
  const int together = 32 >> laneBits, groups = (all + together - 1) >> (5 - laneBits);
  const unsigned chunks = (unsigned)((groups + steps - 1) / steps);
  const unsigned unit = blockIdx.x * (unsigned)LANE_WARPS + (threadIdx.x >> 5), row = unit / chunks;
  if (row >= (unsigned)rows) return;
  const int first = (int)(unit - row * chunks) * steps, end = first + steps < groups ? first + steps : groups;

  // Where this lane's elements lie in a head, and where they go. Lanes that turn have element i and its partner, half a rope away;
  // partners that lie side by side are parted on the way out.
  const int within = lane & (lanes - 1), half = ropeWidth / 2, straight = 16 * within;
  const bool turning = 8 * within < half, present = straight < headWidth;
  const int a = turning && !PAIRS ? 8 * within : straight, b = turning && !PAIRS ? half + a : straight + 8;
  const int toA = turning ? 8 * within : straight, toB = turning ? half + toA : straight + 8;
  const bool normed = qWeight != nullptr;

  int head = first * together + (lane >> laneBits);
  float w[16];
  bool keyWeights = head >= heads;
  if (normed && present) {
    const float *weight = keyWeights ? kWeight : qWeight;
    load<8>(weight + a, w), load<8>(weight + b, w + 8);
  }
  wait_for_predecessors();

  T *line = x + (long long)row * xStride;
  Eight<T> nextA = {}, nextB = {};
  if (present && head < all) fetch(nextA, line + head * headWidth + a), fetch(nextB, line + head * headWidth + b);
  const int position = positions[row * positionStride], slot = slots[row * slotStride];
  const bool placed = position >= 0 && position < tablePositions, kept = slot >= 0 && slot < capacity;
  if (lane == 0 && !placed) fault(faults, FAULT_POSITION, position);
  if (lane == 0 && slot >= capacity) fault(faults, FAULT_SLOT, slot);
  float cosine[8] = {}, sine[8] = {};
  if (placed && turning) {
    const float *table = cosSin + (long long)position * ropeWidth + 8 * within;
    load<8>(table, cosine), load<8>(table + half, sine);
  }
  T *cache = kv + (kept ? slot : 0) * kvStride;

  for (int step = first; step < end; step++, head += together) {
    float e[16];
    widen(nextA, e), widen(nextB, e + 8);
    const int next = head + together;
    if (step + 1 < end && present && next < all)
      fetch(nextA, line + next * headWidth + a), fetch(nextB, line + next * headWidth + b);
    const bool key = head >= heads, value = head >= heads + kvHeads;
    if (normed) {
      float squares = 0.f;
#pragma unroll
      for (int i = 0; i < 16; i++) squares += present ? e[i] * e[i] : 0.f;
      for (int d = lanes >> 1; d > 0; d >>= 1) squares += __shfl_xor_sync(0xffffffffu, squares, d);
      const float inverse = rsqrtf(squares / (float)headWidth + eps);
      if (key && !keyWeights && present) {
        load<8>(kWeight + a, w), load<8>(kWeight + b, w + 8);
        keyWeights = true;
      }
      if (!value) {
#pragma unroll
        for (int i = 0; i < 16; i++) e[i] = e[i] * inverse * w[i];
      }
    }
    if (turning && !value) {
      float turned[16];
#pragma unroll
      for (int i = 0; i < 8; i++) {
        const float u = e[PAIRS ? 2 * i : i], v = e[PAIRS ? 2 * i + 1 : 8 + i];
        turned[i] = u * cosine[i] - v * sine[i];
        turned[8 + i] = v * cosine[i] + u * sine[i];
      }
#pragma unroll
      for (int i = 0; i < 16; i++) e[i] = turned[i];
    }
    // Elements that change lanes have been read by all before one is written.
    if (PAIRS) __syncwarp();
    const bool stored = present && head < all && (!key || kept) && (value || placed);
    T *to = key ? cache + (head - heads) * headWidth : line + head * headWidth;
    if (stored) store<8>(to + (value ? a : toA), e), store<8>(to + (value ? b : toB), e + 8);
  }
}

// grid: rows; a whole number of warps a block. ropeWidth at most 512.
template <class T, int V>
DEVICE void latentNormRopeStore(const T *x, T *kv, const int *slots, const int *positions, const float *cosSin,
                                const float *weight, int *faults, int latent, int ropeWidth, int interleaved, float eps,
                                int capacity, int tablePositions, long long xStride, long long kvStride,
                                long long slotStride, long long positionStride) {
  __shared__ float parts[32];
  __shared__ float key[WIDEST_HEAD];
  const long long row = blockIdx.x;
  allow_dependents();
  wait_for_predecessors();
  const int slot = slots[row * slotStride], position = positions[row * positionStride];
  if (slot < 0) return;
  if (slot >= capacity || position < 0 || position >= tablePositions) {
    if (threadIdx.x == 0) fault(faults, slot >= capacity ? FAULT_SLOT : FAULT_POSITION, slot >= capacity ? slot : position);
    return;
  }
  x += row * xStride;
  kv += slot * kvStride;
  for (int c = threadIdx.x; c < ropeWidth; c += blockDim.x) key[c] = one(x + latent + c);
  float squares = 0.f;
  for (int c = threadIdx.x * V; c < latent; c += blockDim.x * V) {
    float part[V];
    load<V>(x + c, part);
#pragma unroll
    for (int j = 0; j < V; j++) squares += part[j] * part[j];
  }
  __syncthreads();
  const float inverse = rsqrtf(blockSum(squares, parts) / (float)latent + eps);
  for (int c = threadIdx.x * V; c < latent; c += blockDim.x * V) {
    float part[V], w[V];
    load<V>(x + c, part);
    load<V>(weight + c, w);
#pragma unroll
    for (int j = 0; j < V; j++) part[j] = part[j] * inverse * w[j];
    store<V>(kv + c, part);
  }
  const float *table = cosSin + (long long)position * ropeWidth;
  for (int c = threadIdx.x; c < ropeWidth; c += blockDim.x)
    put(kv + latent + c, rotated(key, table, c, ropeWidth, interleaved));
}

} // namespace

#define HEADS(NAME, T)                                                                                                 \
  extern "C" __global__ void qk_norm_rope_store_##NAME##_any(                                                          \
      T *x, T *kv, const int *slots, const int *positions, const float *cosSin, const float *qWeight,                  \
      const float *kWeight, int *faults, int rows, int heads, int kvHeads, int headWidth, int ropeWidth,               \
      int interleaved, float eps, int capacity, int tablePositions, long long xStride, long long kvStride,             \
      long long slotStride, long long positionStride) {                                                                \
    qkNormRopeStore<T>(x, kv, slots, positions, cosSin, qWeight, kWeight, faults, rows, heads, kvHeads, headWidth,     \
                       ropeWidth, interleaved, eps, capacity, tablePositions, xStride, kvStride, slotStride,           \
                       positionStride);                                                                                \
  }

#define LANES(NAME, T, PAIRS)                                                                                          \
  extern "C" __global__ void __launch_bounds__(128) qk_norm_rope_store_##NAME(                                         \
      T *x, T *kv, const int *slots, const int *positions, const float *cosSin, const float *qWeight,                  \
      const float *kWeight, int *faults, int rows, int heads, int kvHeads, int headWidth, int ropeWidth, int laneBits, \
      int steps, float eps, int capacity, int tablePositions, long long xStride, long long kvStride,                   \
      long long slotStride, long long positionStride) {                                                                \
    qkByLanes<T, PAIRS>(x, kv, slots, positions, cosSin, qWeight, kWeight, faults, rows, heads, kvHeads, headWidth,    \
                        ropeWidth, laneBits, steps, eps, capacity, tablePositions, xStride, kvStride, slotStride,      \
                        positionStride);                                                                               \
  }

#define LATENT(NAME, T, V)                                                                                             \
  extern "C" __global__ void latent_norm_rope_store_##NAME##_##V(                                                      \
      const T *x, T *kv, const int *slots, const int *positions, const float *cosSin, const float *weight,             \
      int *faults, int rows, int latent, int ropeWidth, int interleaved, float eps, int capacity,                      \
      int tablePositions, long long xStride, long long kvStride, long long slotStride, long long positionStride) {     \
    latentNormRopeStore<T, V>(x, kv, slots, positions, cosSin, weight, faults, latent, ropeWidth, interleaved, eps,    \
                              capacity, tablePositions, xStride, kvStride, slotStride, positionStride);                \
  }
HEADS(f32, float)
HEADS(bf16, bf16)
LANES(f32_halves, float, false)
LANES(f32_pairs, float, true)
LANES(bf16_halves, bf16, false)
LANES(bf16_pairs, bf16, true)
LATENT(f32, float, 1)
LATENT(f32, float, 4)
LATENT(bf16, bf16, 1)
LATENT(bf16, bf16, 4)
