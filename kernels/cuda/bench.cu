// What benchmarks and checks of products need on the device: random operands too large to come from the host, and results that are
// compared with sums made one by one in f32 from the same operands.
#include "common.cuh"

namespace {

/// A number of 32 well mixed bits out of two (constants: murmur3's finalizer, public domain).
DEVICE u32 mix(u64 a, u32 seed) {
  u32 h = (u32)a ^ (u32)(a >> 32) * 0x9e3779b9u ^ seed * 0x85ebca6bu;
  h ^= h >> 16, h *= 0x85ebca6bu, h ^= h >> 13, h *= 0xc2b2ae35u, h ^= h >> 16;
  return h;
}

} // namespace

/// p[i] = uniform in (-scale, scale), a function of seed and i alone.
extern "C" __global__ void bench_fill(bf16 *p, u64 n, u32 seed, float scale) {
  for (u64 i = blockIdx.x * (u64)blockDim.x + threadIdx.x; i < n; i += (u64)gridDim.x * blockDim.x)
    p[i] = to_bf16(((float)(mix(i, seed) >> 8) * (2.0f / 16777216.0f) - 1.0f) * scale);
}

/// A warp a sample: picks a tile, one of its rows and a column, sums anew, and compares with out. `worst` [2] collects, as bits of
/// positive floats: the largest |difference| / bound, and the largest |difference|. The bound: half a unit of bf16 (or of f32) of the
/// result, and for each sum (k / 8) · 2^-23 · Σ|x·w|, since tensor cores may cut one bit at each of their steps.
extern "C" __global__ void __launch_bounds__(256)
    bench_check(const bf16 *x, i64 x_stride, const u8 *w, i64 w_bytes, const u8 *out, i64 out_stride, int out_is_f32, const int4 *tiles,
                const int *tile_count, int n, int k, int gated, int samples, u32 seed, u32 *worst) {
  const int sample = blockIdx.x * 8 + warp_id(), lane = lane_id();
  if (sample >= samples) return;
  const int4 tile = tiles[mix(sample, seed) % (u32)*tile_count];
  if (tile.x < 0 || tile.z <= 0) return;
  const i64 row = tile.y + mix(sample, seed + 1) % (u32)tile.z;
  const int column = mix(sample, seed + 2) % (u32)n;
  const bf16 *xs = x + row * x_stride, *ws = reinterpret_cast<const bf16 *>(w + (i64)tile.x * w_bytes);
  float sums[2] = {}, sizes[2] = {};
  for (int side = 0; side < (gated ? 2 : 1); side++) {
    const bf16 *from = ws + ((i64)column + side * n) * k;
    for (int i = lane; i < k; i += 32) {
      const float term = to_float(xs[i]) * to_float(from[i]);
      sums[side] += term, sizes[side] += fabsf(term);
    }
    sums[side] = warp_sum(sums[side]), sizes[side] = warp_sum(sizes[side]) * (float)k / 8.0f * 1.1920929e-7f;
  }
  float want = sums[0], bound = sizes[0];
  if (gated) {
    const float sigmoid = 1.0f / (1.0f + expf(-sums[0])), silu = sums[0] * sigmoid;
    want = silu * sums[1];
    bound = 1.1f * fabsf(sums[1]) * sizes[0] + fabsf(silu) * sizes[1]; // silu's slope stays below 1.1
  }
  bound += fabsf(want) * (out_is_f32 ? 1e-6f : 1.0f / 256.0f) + 1e-30f;
  const i64 at = row * out_stride + column;
  const float got = out_is_f32 ? reinterpret_cast<const float *>(out)[at] : to_float(reinterpret_cast<const bf16 *>(out)[at]);
  const float difference = fabsf(got - want);
  if (lane != 0) return;
  // What is no number is worse than anything.
  const float ratio = difference <= 3e38f ? difference / bound : 3e38f;
  atomicMax(&worst[0], __float_as_uint(ratio));
  atomicMax(&worst[1], __float_as_uint(difference <= 3e38f ? difference : 3e38f));
}
