// Kernels that check tensor maps, bulk copies, barriers and programmatic launches. The engine runs none of them.
#include "common.cuh"

/// Dynamic shared memory from the next multiple of 1024 on: launches ask for 1024 bytes more than they use.
DEVICE u8 *aligned_memory() {
  extern __shared__ u8 raw[];
  return raw + ((1024 - (shared_address(raw) & 1023)) & 1023);
}

extern "C" {

/// Copies the box at (x, y) of a bf16 matrix into shared memory and writes the shared bytes out as they lie there.
/// One block of 128 threads; box [rows, 64].
__global__ void probe_tensor_map(const __grid_constant__ TensorMap map, int x, int y, int rows, u16 *out) {
  u8 *memory = aligned_memory();
  __shared__ __align__(8) u64 barrier_word;
  const u32 barrier = shared_address(&barrier_word);
  if (threadIdx.x == 0) {
    mbarrier_init(barrier, 1);
    mbarrier_init_fence();
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    mbarrier_arrive_expect(barrier, rows * 128);
    tma_load_2d(shared_address(memory), &map, x, y, barrier);
  }
  mbarrier_wait(barrier, 0);
  const u16 *elements = reinterpret_cast<const u16 *>(memory);
  for (int i = threadIdx.x; i < rows * 64; i += blockDim.x) out[i] = elements[i];
}

/// As probe_tensor_map, for a box [1, rows, 64] at (0, 0, z).
__global__ void probe_tensor_map_3d(const __grid_constant__ TensorMap map, int z, int rows, u16 *out) {
  u8 *memory = aligned_memory();
  __shared__ __align__(8) u64 barrier_word;
  const u32 barrier = shared_address(&barrier_word);
  if (threadIdx.x == 0) {
    mbarrier_init(barrier, 1);
    mbarrier_init_fence();
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    mbarrier_arrive_expect(barrier, rows * 128);
    tma_load_3d(shared_address(memory), &map, 0, 0, z, barrier);
  }
  mbarrier_wait(barrier, 0);
  const u16 *elements = reinterpret_cast<const u16 *>(memory);
  for (int i = threadIdx.x; i < rows * 64; i += blockDim.x) out[i] = elements[i];
}

/// Writes a box of shared memory, filled with its index as bf16 bits, to (x, y).
__global__ void probe_tensor_store(const __grid_constant__ TensorMap map, int x, int y, int rows) {
  u8 *memory = aligned_memory();
  u16 *elements = reinterpret_cast<u16 *>(memory);
  for (int i = threadIdx.x; i < rows * 64; i += blockDim.x) elements[i] = (u16)(i + 1);
  fence_async_shared();
  __syncthreads();
  if (threadIdx.x == 0) {
    tma_store_2d(&map, x, y, shared_address(memory));
    bulk_commit();
    bulk_wait<0>();
  }
}

/// out[0] += 1 after the kernels before have finished: programmatic launches keep their order.
__global__ void probe_successor(int *out) {
  allow_dependents();
  wait_for_predecessors();
  if (threadIdx.x == 0 && blockIdx.x == 0) out[0] += 1;
}

} // extern "C"
