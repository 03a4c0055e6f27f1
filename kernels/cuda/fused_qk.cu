// What lies between a projection and attention, in one kernel: norms, rope, and the store into the paged cache.
//
// qk_norm_rope_store: x [rows, (heads + 2 * kvHeads) * headWidth] = queries, keys, values, f32 or bf16. Each head of queries
// and keys is normalised (weights given) and its first ropeWidth elements are rotated; queries stay in x, keys and values go
// to kv[slot] (keys of all heads, then values). Keys and values in x are left as they were.
// latent_norm_rope_store: x [rows, latent + ropeWidth]: the latent is normalised, the shared key rotated, both go to kv[slot].
// Rules: rmsNorm, rope and storeKv of src/device/ops.ts one after another, but for one thing: numbers stay in f32 between the
// steps, where separate operations round to the type of x after each. A negative slot stores nothing.
// Algorithm: a warp a head, kept in registers, through shared memory for the rope's pairs; a block a row for the latent. cosSin as in
// rope.cu. Weights are read before the kernel waits for the one before it.
// Versions and times: not measured yet.
#include "elements.cuh"

namespace {

using namespace el;

constexpr int WARPS = 8, WIDEST_HEAD = 512;

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

// grid: ceil(rows * (heads + 2 * kvHeads) / 8), 256 threads. headWidth a multiple of V, at most 32 * V * KEPT and 512.
template <class T, int V, int KEPT>
DEVICE void qkNormRopeStore(T *x, T *kv, const int *slots, const int *positions, const float *cosSin, const float *qWeight,
                            const float *kWeight, int *faults, int rows, int heads, int kvHeads, int headWidth,
                            int ropeWidth, int interleaved, float eps, int capacity, int tablePositions,
                            long long xStride, long long kvStride, long long slotStride, long long positionStride) {
  __shared__ float4 lines[WARPS][WIDEST_HEAD / 4];
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

#define HEADS(NAME, T, V, KEPT)                                                                                        \
  extern "C" __global__ void qk_norm_rope_store_##NAME(                                                                \
      T *x, T *kv, const int *slots, const int *positions, const float *cosSin, const float *qWeight,                  \
      const float *kWeight, int *faults, int rows, int heads, int kvHeads, int headWidth, int ropeWidth,               \
      int interleaved, float eps, int capacity, int tablePositions, long long xStride, long long kvStride,             \
      long long slotStride, long long positionStride) {                                                                \
    qkNormRopeStore<T, V, KEPT>(x, kv, slots, positions, cosSin, qWeight, kWeight, faults, rows, heads, kvHeads, headWidth,  \
                          ropeWidth, interleaved, eps, capacity, tablePositions, xStride, kvStride, slotStride,        \
                          positionStride);                                                                             \
  }

#define LATENT(NAME, T, V)                                                                                             \
  extern "C" __global__ void latent_norm_rope_store_##NAME##_##V(                                                      \
      const T *x, T *kv, const int *slots, const int *positions, const float *cosSin, const float *weight,             \
      int *faults, int rows, int latent, int ropeWidth, int interleaved, float eps, int capacity,                      \
      int tablePositions, long long xStride, long long kvStride, long long slotStride, long long positionStride) {     \
    latentNormRopeStore<T, V>(x, kv, slots, positions, cosSin, weight, faults, latent, ropeWidth, interleaved, eps,    \
                              capacity, tablePositions, xStride, kvStride, slotStride, positionStride);                \
  }
// Heads by single elements, up to 128 by vectors, and wider ones by vectors.
HEADS(f32_1, float, 1, 16)
HEADS(f32_4, float, 4, 1)
HEADS(f32_4_wide, float, 4, 4)
HEADS(bf16_1, bf16, 1, 16)
HEADS(bf16_4, bf16, 4, 1)
HEADS(bf16_4_wide, bf16, 4, 4)
LATENT(f32, float, 1)
LATENT(f32, float, 4)
LATENT(bf16, bf16, 1)
LATENT(bf16, bf16, 4)
