// What the attention kernels use of the machine, each by the one PTX instruction it stands for. Kept apart from the kernels so
// that these few functions can be replaced by plain C++ with the same meaning (test/cuda-emulator) and the kernels run,
// fragment by fragment, on a machine without a GPU.
//
// Fragments (PTX ISA, "Matrix Fragments for mma.m16n8k16"), lane = 4 * g + t, g = 0..7, t = 0..3:
//   A 16 x 16, rows m, columns k: a0 = (g, 2t..2t+1), a1 = (g + 8, same k), a2 = (g, 2t + 8..), a3 = (g + 8, 2t + 8..)
//   B 16 x 8, rows k, columns n:  b0 = (k 2t..2t+1, n = g), b1 = (k 2t + 8.., n = g)
//   C 16 x 8:                     c0, c1 = (g, 2t), (g, 2t + 1); c2, c3 = (g + 8, 2t), (g + 8, 2t + 1)
// ldmatrix gives register j of lane 4 * g + t the elements (row g, columns 2t..2t+1) of the 8 x 8 matrix j, whose row i lies
// where lane 8 * j + i points; with .trans the elements (rows 2t..2t+1, column g).
#pragma once

#define ATT_DEVICE __device__ __forceinline__
#define ATT_DYNAMIC_SHARED(name) extern __shared__ __align__(1024) unsigned char name[]

namespace att {

typedef unsigned short bf16_bits;

struct __align__(16) Quad { unsigned x, y, z, w; };

ATT_DEVICE unsigned sharedAddress(const void *p) { return (unsigned)__cvta_generic_to_shared(p); }

// Two floats rounded to nearest even: lo in the low half.
ATT_DEVICE unsigned pack(float lo, float hi) {
  unsigned r;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(hi), "f"(lo));
  return r;
}

ATT_DEVICE float power2(float x) {
  float r;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
  return r;
}

// A product that the compiler does not fuse with an addition: bits that must be the same wherever it is computed.
ATT_DEVICE float product(float x, float y) { return __fmul_rn(x, y); }

// 16 bytes to shared memory past L1; `bytes` is 16, or 0 for zeros (then nothing is read).
ATT_DEVICE void copy16(unsigned to, const void *from, int bytes) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(to), "l"(__cvta_generic_to_global(from)), "r"(bytes) : "memory");
}

ATT_DEVICE void commitCopies() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Until at most N groups of this thread's copies are under way.
template <int N> ATT_DEVICE void waitCopies() { asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory"); }

ATT_DEVICE void loadMatrices(unsigned (&r)[4], unsigned address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address)
               : "memory");
}

ATT_DEVICE void loadMatricesTransposed(unsigned (&r)[4], unsigned address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address)
               : "memory");
}

// x, which the compiler must now take as something it knows nothing of: what is made from it is not kept across turns of a loop.
ATT_DEVICE unsigned opaque(unsigned x) {
  asm volatile("" : "+r"(x));
  return x;
}

ATT_DEVICE void multiply(float (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
               : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

ATT_DEVICE float shuffleXor(float x, int mask) { return __shfl_xor_sync(0xffffffffu, x, mask); }
ATT_DEVICE int shuffle(int x, int lane) { return __shfl_sync(0xffffffffu, x, lane); }
ATT_DEVICE unsigned ballot(bool x) { return __ballot_sync(0xffffffffu, x); }
ATT_DEVICE void warpBarrier() { __syncwarp(); }
ATT_DEVICE void blockBarrier() { __syncthreads(); }

// Programmatic dependent launch: kernels queued later may start from here on, and nothing is read before the earlier ones have
// finished. Every block of every kernel calls it first, so that "finished" passes on. Does nothing in an ordinary launch.
ATT_DEVICE void waitForEarlierKernels() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;\n griddepcontrol.wait;" ::: "memory");
#endif
}

// Stores before it are seen by every block that sees what this thread writes after it.
ATT_DEVICE void fence() { __threadfence(); }
ATT_DEVICE int addOne(int *counter) { return atomicAdd(counter, 1); }

// Reads that must see other blocks' stores: past L1.
ATT_DEVICE float4 loadPastL1(const float4 *p) {
  float4 v;
  asm volatile("ld.global.cg.v4.f32 {%0, %1, %2, %3}, [%4];" : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w) : "l"(p) : "memory");
  return v;
}
ATT_DEVICE float loadPastL1(const float *p) {
  float v;
  asm volatile("ld.global.cg.f32 %0, [%1];" : "=f"(v) : "l"(p) : "memory");
  return v;
}

} // namespace att
