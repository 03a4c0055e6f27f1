// What all CUDA kernels share: bf16, vector access, reductions, asynchronous copies, tensor cores, and for sm_90 the barriers
// and bulk copies of its tensor memory accelerator. No CUDA headers: compiled by NVRTC with this folder as its only include
// path, and by nvcc in a test. Instructions by name as in NVIDIA's PTX ISA 8.x.
#pragma once

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef long long i64;

#define DEVICE __device__ __forceinline__
/// Shared memory of a launch, and of a kernel; by names that the emulated machine of tests can give another meaning.
#define DYNAMIC_SHARED(type, name) extern __shared__ __align__(128) type name[]
#define BLOCK_SHARED(type, name, count) __shared__ __align__(16) type name[count]

// ---------------------------------------------------------------------------------------------- numbers

/// A bfloat16: the upper half of a float.
struct __align__(2) bf16 {
  u16 bits;
};

DEVICE float to_float(float x) { return x; }
DEVICE float to_float(bf16 x) { return __uint_as_float((u32)x.bits << 16); }

/// Rounds to nearest, ties to even.
DEVICE bf16 to_bf16(float x) {
  bf16 y;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(y.bits) : "f"(x));
  return y;
}

/// Two bf16 in a word, `lo` in the lower half (the lower address).
DEVICE u32 pack_bf16(float lo, float hi) {
  u32 y;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(y) : "f"(hi), "f"(lo));
  return y;
}
DEVICE float low_bf16(u32 pair) { return __uint_as_float(pair << 16); }
DEVICE float high_bf16(u32 pair) { return __uint_as_float(pair & 0xffff0000u); }

template <class T> DEVICE T from_float(float x);
template <> DEVICE float from_float<float>(float x) { return x; }
template <> DEVICE bf16 from_float<bf16>(float x) { return to_bf16(x); }

/// Loads and stores of one element, whatever it is stored as.
template <class T> DEVICE float ldF(const T *p) { return to_float(*p); }
template <class T> DEVICE void stF(T *p, float x) { *p = from_float<T>(x); }

__host__ __device__ constexpr int ceil_div(int a, int b) { return (a + b - 1) / b; }
template <class T> DEVICE T min2(T a, T b) { return a < b ? a : b; }
template <class T> DEVICE T max2(T a, T b) { return a > b ? a : b; }
#define NEG_INF (-__int_as_float(0x7f800000))

// ---------------------------------------------------------------------------------------------- 16 bytes at a time

/// Elements of T in 16 bytes: 4 floats or 8 bf16.
template <class T> struct Vec {
  static constexpr int N = 16 / sizeof(T);
};

DEVICE void unpack16(uint4 raw, float (&x)[4], const float *) {
  x[0] = __uint_as_float(raw.x);
  x[1] = __uint_as_float(raw.y);
  x[2] = __uint_as_float(raw.z);
  x[3] = __uint_as_float(raw.w);
}
DEVICE void unpack16(uint4 raw, float (&x)[8], const bf16 *) {
  x[0] = low_bf16(raw.x), x[1] = high_bf16(raw.x);
  x[2] = low_bf16(raw.y), x[3] = high_bf16(raw.y);
  x[4] = low_bf16(raw.z), x[5] = high_bf16(raw.z);
  x[6] = low_bf16(raw.w), x[7] = high_bf16(raw.w);
}
DEVICE uint4 pack16(const float (&x)[4], const float *) {
  return make_uint4(__float_as_uint(x[0]), __float_as_uint(x[1]), __float_as_uint(x[2]), __float_as_uint(x[3]));
}
DEVICE uint4 pack16(const float (&x)[8], const bf16 *) {
  return make_uint4(pack_bf16(x[0], x[1]), pack_bf16(x[2], x[3]), pack_bf16(x[4], x[5]), pack_bf16(x[6], x[7]));
}

/// p must be 16-byte aligned.
template <class T> DEVICE void ldVec(const T *p, float (&x)[Vec<T>::N]) {
  unpack16(*reinterpret_cast<const uint4 *>(p), x, p);
}
template <class T> DEVICE void stVec(T *p, const float (&x)[Vec<T>::N]) {
  *reinterpret_cast<uint4 *>(p) = pack16(x, p);
}

/// 16 bytes that no thread of the grid writes and that are read once (weights): past L1.
DEVICE uint4 ld_stream16(const void *p) {
  uint4 v;
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(p));
  return v;
}

// ---------------------------------------------------------------------------------------------- warps and blocks

DEVICE int lane_id() { return threadIdx.x & 31; }
DEVICE int warp_id() { return threadIdx.x >> 5; }

/// Sums over a warp (or over aligned groups of WIDTH lanes); every lane gets the sum.
template <int WIDTH = 32> DEVICE float warp_sum(float x) {
#pragma unroll
  for (int d = WIDTH / 2; d > 0; d >>= 1) x += __shfl_xor_sync(0xffffffffu, x, d);
  return x;
}
template <int WIDTH = 32> DEVICE int warp_sum(int x) {
#pragma unroll
  for (int d = WIDTH / 2; d > 0; d >>= 1) x += __shfl_xor_sync(0xffffffffu, x, d);
  return x;
}
template <int WIDTH = 32> DEVICE float warp_max(float x) {
#pragma unroll
  for (int d = WIDTH / 2; d > 0; d >>= 1) x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, d));
  return x;
}

// ---------------------------------------------------------------------------------------------- shared memory, cp.async

/// A pointer into shared memory as the 32-bit address that PTX takes.
DEVICE u32 shared_address(const void *p) { return (u32)__cvta_generic_to_shared(p); }

/// Copies 16 bytes, or writes zeros where `valid` is false (nothing is read then). Both addresses 16-byte aligned.
DEVICE void cp_async16(u32 to, const void *from, bool valid = true) {
  int bytes = valid ? 16 : 0;
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes) : "memory");
}
DEVICE void cp_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
/// Waits until at most PENDING of this thread's youngest groups are unfinished. A __syncthreads makes them visible to others.
template <int PENDING> DEVICE void cp_async_wait() { asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory"); }

// ---------------------------------------------------------------------------------------------- tensor cores, sm_80

/// Four 8×8 matrices of 16-bit elements. Lane l gives the address of row l % 8 of matrix l / 8 (16 bytes a row). In result i
/// lane l holds elements 2·(l % 4) and the next of row l / 4 of matrix i.
DEVICE void ldmatrix_x4(u32 (&r)[4], u32 address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address)
               : "memory");
}
/// c[16×8] += a[16×16] · b[16×8]; a row-major, b column-major (so b's lane pairs run along k). With g = lane / 4, t = lane % 4:
/// a0 = (row g, k 2t..), a1 = (row g+8, k 2t..), a2 = (row g, k 2t+8..), a3 = (row g+8, k 2t+8..); b0 = (k 2t.., column g),
/// b1 = (k 2t+8.., column g); c0, c1 = (row g, columns 2t, 2t+1), c2, c3 = (row g+8, same columns).
DEVICE void mma_bf16(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
               : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// ---------------------------------------------------------------------------------------------- order between threads

/// The next kernel of the stream may start once every block has said so or has ended (programmatic dependent launch), and: wait until
/// the kernel before has finished and what it wrote can be seen. Without the launch attribute, and before sm_90, both do nothing.
/// A kernel that is launched with it must wait in some block: the kernel after it then knows that all before have finished.
DEVICE void allow_dependents() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
DEVICE void wait_for_predecessors() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

/// 2^x, and e^x through it; about 2 ulp, subnormal results are zero.
DEVICE float fast_exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
DEVICE float fast_exp(float x) { return fast_exp2(x * 1.4426950408889634f); }

// ---------------------------------------------------------------------------------------------- sm_90

/// A tensor map as the driver encodes it. Kernels take it as `const __grid_constant__ TensorMap`.
struct __align__(64) TensorMap {
  u64 opaque[16];
};

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900

/// A barrier in shared memory, 8 bytes, 8-byte aligned. A phase ends when `arrivals` have come and all expected bytes.
DEVICE void mbarrier_init(u32 barrier, u32 arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}
/// After initialising, before the barriers are used by the copy engine; then a __syncthreads.
DEVICE void mbarrier_init_fence() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
/// Arrives once and adds bytes that the phase has to wait for.
DEVICE void mbarrier_arrive_expect(u32 barrier, u32 bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}
DEVICE void mbarrier_arrive(u32 barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
/// Waits until the phase of this parity has ended: 0 for the first phase, then 1, 0, ... Waiting for the phase before the
/// first (parity 1 on a fresh barrier) returns at once.
DEVICE void mbarrier_wait(u32 barrier, u32 parity) {
  asm volatile("{\n"
               " .reg .pred p;\n"
               "again:\n"
               " mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n"
               " @p bra done;\n"
               " bra again;\n"
               "done:\n"
               "}" ::"r"(barrier),
               "r"(parity)
               : "memory");
}

/// Four 8×8 of 16 bits to shared memory, each with row g in lanes 4g to 4g + 3, two a lane: their columns become rows of 16 bytes. Lane
/// 8m + i gives the address of row i of matrix m.
DEVICE void store_matrices_transposed(u32 address, const u32 (&w)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(w[0]), "r"(w[1]), "r"(w[2]),
               "r"(w[3])
               : "memory");
}
DEVICE uint4 ld_shared16(u32 address) {
  uint4 v;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "r"(address) : "memory");
  return v;
}
/// `threads` threads of the block meet at a barrier of their own; number 0 is __syncthreads'.
DEVICE void sync_threads(int number, int threads) { asm volatile("bar.sync %0, %1;" ::"r"(number), "r"(threads) : "memory"); }

/// Writes of this thread to shared memory become visible to the copy engine and to wgmma.
DEVICE void fence_async_shared() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

DEVICE void tma_prefetch_map(const TensorMap *map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}
/// Copies the box whose first element is (x, y), x innermost, to shared memory (128-byte aligned; 1024 for 128B swizzle).
DEVICE void tma_load_2d(u32 to, const TensorMap *map, int x, int y, u32 barrier) {
  asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];" ::"r"(to),
               "l"(map), "r"(x), "r"(y), "r"(barrier)
               : "memory");
}
DEVICE void tma_load_3d(u32 to, const TensorMap *map, int x, int y, int z, u32 barrier) {
  asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4}], [%5];" ::"r"(to),
               "l"(map), "r"(x), "r"(y), "r"(z), "r"(barrier)
               : "memory");
}
DEVICE void tma_load_5d(u32 to, const TensorMap *map, int x, int y, int z, int v, int w, u32 barrier) {
  asm volatile("cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4, %5, %6}], [%7];" ::"r"(to),
               "l"(map), "r"(x), "r"(y), "r"(z), "r"(v), "r"(w), "r"(barrier)
               : "memory");
}
DEVICE void tma_store_2d(const TensorMap *map, int x, int y, u32 from) {
  asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%1, %2}], [%3];" ::"l"(map), "r"(x), "r"(y), "r"(from)
               : "memory");
}
DEVICE void bulk_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
/// Until at most PENDING groups of this thread's stores have not been read out of shared memory / have not been written.
template <int PENDING> DEVICE void bulk_wait_read() { asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(PENDING) : "memory"); }
template <int PENDING> DEVICE void bulk_wait() { asm volatile("cp.async.bulk.wait_group %0;" ::"n"(PENDING) : "memory"); }

#endif // sm_90

#if defined(__CUDA_ARCH_FEAT_SM90_ALL) || !defined(__CUDA_ARCH__)

/// Gives registers of this warpgroup back, or takes them; N is a multiple of 8 between 24 and 256.
template <int N> DEVICE void registers_decrease() { asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N)); }
template <int N> DEVICE void registers_increase() { asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N)); }

/// Before the first wgmma of a batch (and after other writes to its accumulators); after the batch; until at most PENDING
/// batches run.
DEVICE void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
DEVICE void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int PENDING> DEVICE void wgmma_wait() { asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory"); }
/// Keeps the compiler from moving uses of an accumulator over a wait.
DEVICE void wgmma_keep(float &accumulator) { asm volatile("" : "+f"(accumulator)::"memory"); }

/// Descriptor of a bf16 operand whose inner dimension (k) is contiguous, in tiles of 64 elements a row as a bulk copy with 128-byte
/// swizzle writes them. `address` is 1024-byte aligned; the next 16 elements of k are 32 bytes on. Fields: address >> 4 in bits
/// 0..13, leading offset 1 (unused) in 16..29, 1024 >> 4 between groups of 8 rows in 32..45, swizzle 128 B = 1 in 62..63.
DEVICE u64 wgmma_descriptor_128B(u32 address) {
  return (u64)((address & 0x3ffffu) >> 4) | (u64)1 << 16 | (u64)(1024 >> 4) << 32 | (u64)1 << 62;
}

#endif // sm_90a
