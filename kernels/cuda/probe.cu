// Kernels that check the bindings, not the arithmetic: arguments arrive, memory of the host is reached, work takes time.
// The engine runs none of them. Shapes: one-dimensional, one thread an element.
#include "common.cuh"

extern "C" {

/// Does nothing: what a launch costs.
__global__ void probe_nothing() {}

/// out[i] = all arguments, so that a misplaced one shows.
__global__ void probe_arguments(float *out, int a, float b, u64 c, u32 d, float e) {
  if (threadIdx.x == 0 && blockIdx.x == 0) {
    out[0] = (float)a;
    out[1] = b;
    out[2] = (float)(c >> 32);
    out[3] = (float)(c & 0xffffffffu);
    out[4] = (float)(d >> 16);
    out[5] = e;
    out[6] = (float)(gridDim.x * 100 + gridDim.y * 10 + gridDim.z);
    out[7] = (float)(blockDim.x * 100 + blockDim.y * 10 + blockDim.z);
  }
}

/// out[i] = in[i] + add.
__global__ void probe_add(int *out, const int *in, int add, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) out[i] = in[i] + add;
}

/// Writes `value` once about `microseconds` have passed.
__global__ void probe_delay(int *out, int value, int microseconds) {
  u64 start, now;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(start));
  do {
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
  } while (now - start < (u64)microseconds * 1000);
  *out = value;
}

/// Sums through dynamic shared memory: out[0] = Σ i for i < words, each word written and read there.
__global__ void probe_shared(int *out, int words) {
  extern __shared__ int memory[];
  for (int i = threadIdx.x; i < words; i += blockDim.x) memory[i] = i;
  __syncthreads();
  int sum = 0;
  for (int i = threadIdx.x; i < words; i += blockDim.x) sum += memory[words - 1 - i];
  sum = warp_sum(sum);
  if (lane_id() == 0) atomicAdd(out, sum);
}

/// Reads 4 bytes at `address`: a wild address ends the context.
__global__ void probe_read(int *out, u64 address) { *out = *reinterpret_cast<const int *>(address); }

} // extern "C"
