// wgmma of a warpgroup (sm_90a) with any number of columns that is a multiple of 16: d[64×N] = (accumulate ? d : 0) + a[64×16] · b[N×16]ᵀ, all
// in shared memory as bf16 with k contiguous, sums in f32. Warp w of the warpgroup holds rows 16w to 16w + 15. With g = lane / 4, t = lane % 4:
// d[4j], d[4j + 1] are row g, columns 8j + 2t and the next; d[4j + 2], d[4j + 3] the same columns of row g + 8.
// (PTX ISA 8.x, wgmma.mma_async, "Register Fragments".)
#pragma once
#include "common.cuh"

#if defined(__CUDA_ARCH_FEAT_SM90_ALL) || !defined(__CUDA_ARCH__)

template <int N> struct Columns {};

// Registers of 16 columns more: names in the instruction (0 to 2 are the descriptors and the predicate), and operands.
#define WGMMA_NAMES_16 "%3, %4, %5, %6, %7, %8, %9, %10"
#define WGMMA_NAMES_32 WGMMA_NAMES_16 ", %11, %12, %13, %14, %15, %16, %17, %18"
#define WGMMA_NAMES_48 WGMMA_NAMES_32 ", %19, %20, %21, %22, %23, %24, %25, %26"
#define WGMMA_NAMES_64 WGMMA_NAMES_48 ", %27, %28, %29, %30, %31, %32, %33, %34"
#define WGMMA_NAMES_80 WGMMA_NAMES_64 ", %35, %36, %37, %38, %39, %40, %41, %42"
#define WGMMA_NAMES_96 WGMMA_NAMES_80 ", %43, %44, %45, %46, %47, %48, %49, %50"
#define WGMMA_NAMES_112 WGMMA_NAMES_96 ", %51, %52, %53, %54, %55, %56, %57, %58"
#define WGMMA_NAMES_128 WGMMA_NAMES_112 ", %59, %60, %61, %62, %63, %64, %65, %66"
#define WGMMA_NAMES_144 WGMMA_NAMES_128 ", %67, %68, %69, %70, %71, %72, %73, %74"
#define WGMMA_NAMES_160 WGMMA_NAMES_144 ", %75, %76, %77, %78, %79, %80, %81, %82"
#define WGMMA_NAMES_176 WGMMA_NAMES_160 ", %83, %84, %85, %86, %87, %88, %89, %90"
#define WGMMA_NAMES_192 WGMMA_NAMES_176 ", %91, %92, %93, %94, %95, %96, %97, %98"
#define WGMMA_NAMES_208 WGMMA_NAMES_192 ", %99, %100, %101, %102, %103, %104, %105, %106"
#define WGMMA_NAMES_224 WGMMA_NAMES_208 ", %107, %108, %109, %110, %111, %112, %113, %114"
#define WGMMA_NAMES_240 WGMMA_NAMES_224 ", %115, %116, %117, %118, %119, %120, %121, %122"
#define WGMMA_NAMES_256 WGMMA_NAMES_240 ", %123, %124, %125, %126, %127, %128, %129, %130"
#define WGMMA_EIGHT(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), "+f"(d[i + 6]), "+f"(d[i + 7])
#define WGMMA_OPERANDS_16 WGMMA_EIGHT(0)
#define WGMMA_OPERANDS_32 WGMMA_OPERANDS_16, WGMMA_EIGHT(8)
#define WGMMA_OPERANDS_48 WGMMA_OPERANDS_32, WGMMA_EIGHT(16)
#define WGMMA_OPERANDS_64 WGMMA_OPERANDS_48, WGMMA_EIGHT(24)
#define WGMMA_OPERANDS_80 WGMMA_OPERANDS_64, WGMMA_EIGHT(32)
#define WGMMA_OPERANDS_96 WGMMA_OPERANDS_80, WGMMA_EIGHT(40)
#define WGMMA_OPERANDS_112 WGMMA_OPERANDS_96, WGMMA_EIGHT(48)
#define WGMMA_OPERANDS_128 WGMMA_OPERANDS_112, WGMMA_EIGHT(56)
#define WGMMA_OPERANDS_144 WGMMA_OPERANDS_128, WGMMA_EIGHT(64)
#define WGMMA_OPERANDS_160 WGMMA_OPERANDS_144, WGMMA_EIGHT(72)
#define WGMMA_OPERANDS_176 WGMMA_OPERANDS_160, WGMMA_EIGHT(80)
#define WGMMA_OPERANDS_192 WGMMA_OPERANDS_176, WGMMA_EIGHT(88)
#define WGMMA_OPERANDS_208 WGMMA_OPERANDS_192, WGMMA_EIGHT(96)
#define WGMMA_OPERANDS_224 WGMMA_OPERANDS_208, WGMMA_EIGHT(104)
#define WGMMA_OPERANDS_240 WGMMA_OPERANDS_224, WGMMA_EIGHT(112)
#define WGMMA_OPERANDS_256 WGMMA_OPERANDS_240, WGMMA_EIGHT(120)
#define WGMMA_COLUMNS(N)                                                                                                        \
  DEVICE void wgmma_columns(Columns<N>, float *d, u64 a, u64 b, u32 accumulate) {                                               \
    asm volatile("{\n .reg .pred p;\n setp.ne.b32 p, %2, 0;\n"                                                                  \
                 " wgmma.mma_async.sync.aligned.m64n" #N "k16.f32.bf16.bf16 {" WGMMA_NAMES_##N "}, %0, %1, p, 1, 1, 0, 0;\n}"    \
                 : "+l"(a), "+l"(b), "+r"(accumulate), WGMMA_OPERANDS_##N);                                                     \
  }
WGMMA_COLUMNS(16)
WGMMA_COLUMNS(32)
WGMMA_COLUMNS(48)
WGMMA_COLUMNS(64)
WGMMA_COLUMNS(80)
WGMMA_COLUMNS(96)
WGMMA_COLUMNS(112)
WGMMA_COLUMNS(128)
WGMMA_COLUMNS(144)
WGMMA_COLUMNS(160)
WGMMA_COLUMNS(176)
WGMMA_COLUMNS(192)
WGMMA_COLUMNS(208)
WGMMA_COLUMNS(224)
WGMMA_COLUMNS(240)
WGMMA_COLUMNS(256)

#endif // sm_90a
