// A step's inputs and results between pinned host memory and the GPU, and time stamps for traces.
//
// stage_inputs: the host keeps a copy of the input block; this brings the pieces that a step uses to the GPU. A piece is
// [first word, words]; grid = pieces, each copied by one block straight over the bus. Ids below zero name a row that the step
// before drew (-1 - row) and are looked up here, so that the host may form a step before it knows what the last one drew.
// publish_results: what a step drew, into pinned host memory: [ids | log-probabilities | fault words].
// stamp: the GPU's clock in nanoseconds, by one thread.
// Algorithm: four independent loads a thread at a time, since a load over the bus takes about a microsecond.
// Versions and times: one version, not timed alone.
#include "common.cuh"

namespace {

/// A row of padding: its id stays outside every table.
constexpr u32 PADDING_ID = 0x80000000u;

DEVICE u32 load_host(const u32 *p) {
  u32 v;
  asm volatile("ld.volatile.global.u32 %0, [%1];" : "=r"(v) : "l"(p));
  return v;
}

} // namespace

extern "C" __global__ void stage_inputs(u32 *block, const u32 *mirror, const u32 *pieces, const int *drawn, int idsFrom,
                                        int idsTo) {
  const u32 first = load_host(pieces + 2 * blockIdx.x), words = load_host(pieces + 2 * blockIdx.x + 1);
  const bool ids = (int)first >= idsFrom && (int)first < idsTo;
  for (u32 i = threadIdx.x; i < words; i += 4 * blockDim.x) {
    u32 v[4];
#pragma unroll
    for (u32 j = 0; j < 4; j++) {
      const u32 at = i + j * blockDim.x;
      v[j] = at < words ? load_host(mirror + first + at) : 0u;
    }
#pragma unroll
    for (u32 j = 0; j < 4; j++) {
      const u32 at = i + j * blockDim.x;
      if (at >= words) break;
      u32 x = v[j];
      if (ids && (int)x < 0) x = x == PADDING_ID ? 0xffffffffu : (u32)drawn[-1 - (int)x];
      block[first + at] = x;
    }
  }
}

extern "C" __global__ void publish_results(u32 *results, const u32 *sampled, const u32 *logprobs, u32 *faults, int rows,
                                           int capacity) {
  for (int r = threadIdx.x; r < rows; r += blockDim.x) {
    results[r] = sampled[r];
    results[capacity + r] = logprobs[r];
  }
  if (threadIdx.x < 2) results[2 * capacity + threadIdx.x] = faults[threadIdx.x];
}

extern "C" __global__ void stamp(u64 *stamps, int index) {
  u64 now;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
  stamps[index] = now;
}
