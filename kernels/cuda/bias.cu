// out[r, c] += bias[c], after products of a library that adds none. A thread a column, 32 rows a block.
#include "common.cuh"

namespace {

template <class T> DEVICE void add_bias(T *out, i64 stride, const float *bias, int rows, int width) {
  allow_dependents();
  wait_for_predecessors();
  const int column = blockIdx.x * blockDim.x + threadIdx.x;
  if (column >= width) return;
  const float b = bias[column];
  const int end = min2((int)blockIdx.y * 32 + 32, rows);
  for (int r = blockIdx.y * 32; r < end; r++) stF(out + r * stride + column, ldF(out + r * stride + column) + b);
}

} // namespace

extern "C" __global__ void __launch_bounds__(256) add_bias_f32(float *out, i64 stride, const float *bias, int rows, int width) {
  add_bias(out, stride, bias, rows, width);
}
extern "C" __global__ void __launch_bounds__(256) add_bias_bf16(bf16 *out, i64 stride, const float *bias, int rows, int width) {
  add_bias(out, stride, bias, rows, width);
}
