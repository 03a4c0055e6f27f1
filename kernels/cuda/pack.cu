// Weights of a checkpoint into the layout of this device: row-major [n, k], f32 or bf16.
//
// source: raw bytes of a tensor from element `base` on, uploaded as they lie in the file. Output row i, input c (at
// out[i * outStride + c]) is element offset + i * strideN + c * strideK of the tensor. dtypes: 0 F32, 1 F16, 2 BF16, 3 F8 E4M3 ("fn": no infinities, 0x7f is NaN).
// scales (F8): f32, one a block of blockRows x blockCols of the tensor, `columns` a row of blocks; the product is rounded to f32
// first. Rounds to nearest even when the target is bf16. The conversions are those of src/device/cpu/number-formats.ts.
// Algorithm: a thread an element, in the order of the target, or of the source where that is the contiguous one (transposed).
// Versions and times: start-up only; bound by the copy from the host.
#include "elements.cuh"

namespace {

using namespace el;

DEVICE float fromHalf(unsigned short h) {
  float f;
  asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(h));
  return f;
}

DEVICE float fromE4m3(unsigned char b) {
  const unsigned exponent = b >> 3 & 15u, fraction = b & 7u;
  float x;
  if ((b & 0x7fu) == 0x7fu) x = __uint_as_float(0x7fc00000u);
  else if (exponent) x = __uint_as_float((exponent + 120u) << 23 | fraction << 20);
  else x = (float)fraction * 0.001953125f; // 2^-9
  return b & 0x80u ? -x : x;
}

DEVICE float element(const void *source, long long i, int dtype) {
  switch (dtype) {
  case 0: return static_cast<const float *>(source)[i];
  case 1: return fromHalf(static_cast<const unsigned short *>(source)[i]);
  case 2: return to_float(static_cast<const bf16 *>(source)[i]);
  default: return fromE4m3(static_cast<const unsigned char *>(source)[i]);
  }
}

// One thread an element. byColumn: neighbouring threads take neighbouring rows of one column (strideN is the small one).
template <class W>
DEVICE void pack(W *out, const void *source, const float *scales, long long n, long long k, long long base,
                 long long offset, long long strideN, long long strideK, long long outStride, int dtype, int byColumn,
                 int blockRows, int blockCols, long long columns, long long sourceColumns) {
  for (long long t = (long long)blockIdx.x * blockDim.x + threadIdx.x; t < n * k; t += (long long)gridDim.x * blockDim.x) {
    const long long i = byColumn ? t % n : t / k, c = byColumn ? t / n : t % k;
    const long long at = offset + i * strideN + c * strideK;
    float v = element(source, at - base, dtype);
    if (scales) {
      const long long r = at / sourceColumns, col = at - r * sourceColumns;
      v *= scales[r / blockRows * columns + col / blockCols];
    }
    put(out + i * outStride + c, v);
  }
}

} // namespace

#define PACK(NAME, W)                                                                                                  \
  extern "C" __global__ void pack_##NAME(W *out, const void *source, const float *scales, long long n, long long k,    \
                                         long long base, long long offset, long long strideN, long long strideK,       \
                                         long long outStride, int dtype, int byColumn, int blockRows, int blockCols,   \
                                         long long columns, long long sourceColumns) {                                 \
    pack(out, source, scales, n, k, base, offset, strideN, strideK, outStride, dtype, byColumn, blockRows, blockCols,  \
         columns, sourceColumns);                                                                                      \
  }
PACK(f32, float)
PACK(bf16, bf16)
