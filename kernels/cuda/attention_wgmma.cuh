// The tensor core instructions of a warpgroup (4 warps, sm_90a) that attention uses; emulated in test/cuda-emulator like those of
// attention_primitives.cuh.
//
// Operands in shared memory lie in swizzled pieces of 128-byte rows (64 bf16): byte address a of the row-major piece is found at
// a ^ ((a >> 7 & 7) << 4); pieces begin at multiples of 1024. A descriptor holds, in units of 16 bytes, the start (bits 0-13),
// the leading offset (16-29) and the stride offset (32-45); bits 62-63 = 1 say 128-byte swizzle (PTX ISA, "Matrix descriptor").
//   k contiguous (queries, keys): 8 rows are 1024 bytes, the next 8 rows follow at the stride offset; the leading offset is not used.
//   n contiguous (values): 8 rows of k are 1024 bytes, the next 8 at the stride offset; the next 64 columns of n at the leading one.
// Accumulator of m64n128: d[4 * j + c] is element c of fragment C (attention_primitives.cuh) of rows 16 * warp + .., columns 8 * j + ..
#pragma once
#include "attention_primitives.cuh"

namespace att {

ATT_DEVICE unsigned long long descriptor(unsigned address, unsigned leading, unsigned stride) {
  return (unsigned long long)(address >> 4 & 0x3fff) | (unsigned long long)(leading >> 4) << 16 |
         (unsigned long long)(stride >> 4) << 32 | 1ull << 62;
}

// What this thread has written to shared memory, its finished copies too, may be read by matrix instructions of threads that pass the
// next barrier with it.
ATT_DEVICE void showToMatrices() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// Before the first instruction of a batch; ends a batch; until at most N batches are under way.
ATT_DEVICE void beginMatrices() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
ATT_DEVICE void endMatrices() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int N> ATT_DEVICE void waitMatrices() { asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory"); }

// d[64 x 128] = (add ? d : 0) + a[64 x 16] b[128 x 16]^T, both in shared memory with k contiguous.
ATT_DEVICE void multiplyGroup(float (&d)[64], unsigned long long a, unsigned long long b, int add) {
  asm volatile(
      "{\n .reg .pred p;\n setp.ne.b32 p, %66, 0;\n"
      " wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {"
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
      "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
      "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "
      "%64, %65, p, 1, 1, 0, 0;\n}"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),
        "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]),
        "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]),
        "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]),
        "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]),
        "+f"(d[40]), "+f"(d[41]), "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]),
        "+f"(d[48]), "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]),
        "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63])
      : "l"(a), "l"(b), "r"(add));
}

// d[64 x 128] += a[64 x 16] b[16 x 128]: a is this thread's fragment A of its warp's 16 rows, b in shared memory with n contiguous.
ATT_DEVICE void multiplyGroupRegisters(float (&d)[64], const unsigned (&a)[4], unsigned long long b) {
  asm volatile(
      "{\n .reg .pred p;\n setp.ne.b32 p, 1, 0;\n"
      " wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {"
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
      "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
      "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "
      "{%64, %65, %66, %67}, %68, p, 1, 1, 1;\n}"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),
        "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]),
        "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]),
        "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]),
        "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]),
        "+f"(d[40]), "+f"(d[41]), "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]),
        "+f"(d[48]), "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]),
        "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}

} // namespace att
