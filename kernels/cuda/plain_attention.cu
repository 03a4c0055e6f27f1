// Plain causal attention over pages: the slow reference on the device, for any widths, window and sinks.
//
// Shapes and rules: Ops.attention in src/device/ops.ts. q, kv and out are f32 or bf16 alike; qkWidth and vWidth <= 1024.
// Algorithm: a warp a (row, head). Lanes hold columns lane + 32 * j of the query and of the sum. Positions in ascending order,
// slots of 32 of them looked up together; online softmax in f32. A row's bits depend on its own sequence only.
// Rows with a negative sequence or position give zeros. Pages outside the pool set the fault word and are left out.
// Versions and times: reference only, not tuned.
#include "elements.cuh"

namespace {

using namespace el;

template <class T, int PER>
DEVICE void attend(T *out, const T *q, const T *kv, const int *rowSequence, const int *positions, const int *pageTable,
                   const float *sinks, int *faults, int rows, int heads, int kvHeads, int qkWidth, int vWidth,
                   int keyOffset, int valueOffset, float scale, int window, int pageSize, int capacity, int tableEntries,
                   long long outStride, long long qStride, long long kvStride, long long sequenceStride,
                   long long positionStride, long long tableStride) {
  const long long piece = (long long)blockIdx.x * (blockDim.x >> 5) + (threadIdx.x >> 5);
  if (piece >= (long long)rows * heads) return;
  const long long row = piece / heads;
  const int head = piece % heads, lane = threadIdx.x & 31;
  const int kvHead = (int)((long long)head * kvHeads / heads);
  const int sequence = rowSequence[row * sequenceStride], position = positions[row * positionStride];
  out += row * outStride + (long long)head * vWidth;
  q += row * qStride + (long long)head * qkWidth;
  float query[PER], sum[PER];
#pragma unroll
  for (int j = 0; j < PER; j++) {
    const int c = lane + 32 * j;
    query[j] = c < qkWidth ? one(q + c) * scale : 0.f;
    sum[j] = 0.f;
  }
  float most = NEG_INF, total = 0.f;
  if (sinks) most = sinks[head], total = 1.f;
  if (sequence >= 0 && position >= 0) {
    const int start = window > 0 && position - window + 1 > 0 ? position - window + 1 : 0;
    for (int first = start; first <= position; first += 32) {
      const int p = first + lane;
      int slot = -1;
      if (p <= position) {
        const long long entry = sequence * tableStride + p / pageSize;
        if (entry >= tableEntries) {
          fault(faults, FAULT_PAGE, p / pageSize);
        } else {
          const int page = pageTable[entry];
          const long long s = (long long)page * pageSize + p % pageSize;
          if (page < 0 || s >= capacity) fault(faults, FAULT_PAGE, page);
          else slot = (int)s;
        }
      }
      const int count = position - first + 1 < 32 ? position - first + 1 : 32;
      for (int i = 0; i < count; i++) {
        const int at = __shfl_sync(0xffffffffu, slot, i);
        if (at < 0) continue;
        const T *line = kv + at * kvStride;
        const T *key = line + keyOffset + (long long)kvHead * qkWidth;
        const T *value = line + valueOffset + (long long)kvHead * vWidth;
        float score = 0.f;
#pragma unroll
        for (int j = 0; j < PER; j++) {
          const int c = lane + 32 * j;
          if (c < qkWidth) score += query[j] * one(key + c);
        }
        score = warp_sum(score);
        float weight;
        if (score > most) {
          const float old = expf(most - score);
          most = score;
          weight = 1.f;
          total *= old;
#pragma unroll
          for (int j = 0; j < PER; j++) sum[j] *= old;
        } else {
          weight = expf(score - most);
        }
        total += weight;
#pragma unroll
        for (int j = 0; j < PER; j++) {
          const int c = lane + 32 * j;
          if (c < vWidth) sum[j] += weight * one(value + c);
        }
      }
    }
  } else {
    total = 1.f;
  }
  const float inverse = total > 0.f ? 1.f / total : 0.f;
#pragma unroll
  for (int j = 0; j < PER; j++) {
    const int c = lane + 32 * j;
    if (c < vWidth) put(out + c, sum[j] * inverse);
  }
}

} // namespace

#define ATTENTION(NAME, T, PER)                                                                                        \
  extern "C" __global__ void attention_##NAME##_##PER(                                                                 \
      T *out, const T *q, const T *kv, const int *rowSequence, const int *positions, const int *pageTable,             \
      const float *sinks, int *faults, int rows, int heads, int kvHeads, int qkWidth, int vWidth, int keyOffset,       \
      int valueOffset, float scale, int window, int pageSize, int capacity, int tableEntries, long long outStride,     \
      long long qStride, long long kvStride, long long sequenceStride, long long positionStride,                       \
      long long tableStride) {                                                                                         \
    attend<T, PER>(out, q, kv, rowSequence, positions, pageTable, sinks, faults, rows, heads, kvHeads, qkWidth,        \
                   vWidth, keyOffset, valueOffset, scale, window, pageSize, capacity, tableEntries, outStride,         \
                   qStride, kvStride, sequenceStride, positionStride, tableStride);                                    \
  }
ATTENTION(f32, float, 4)
ATTENTION(f32, float, 32)
ATTENTION(bf16, bf16, 4)
ATTENTION(bf16, bf16, 32)
