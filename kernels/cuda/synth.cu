// Made-up weights, drawn where they are used: the very numbers of src/formats/loader/dummy-weights.ts.
//
// out [n, k] row-major, f32 or bf16. Element (i, c) is table[scramble(key, offset + i * strideN + c * strideK)], a pure function
// of the tensor's name (key) and of the element's index in the tensor; table: 65,536 normal numbers made of the seed.
// Algorithm: a thread 8 elements of a row (k a multiple of 8), else one; the table stays in the caches.
// Versions and times: start-up only.
#include "elements.cuh"

namespace {

using namespace el;

DEVICE unsigned place(unsigned key, unsigned long long index) {
  unsigned h = key ^ (unsigned)index ^ ((unsigned)(index >> 32) * 0x9e3779b1u);
  h = (h ^ (h >> 16)) * 0x85ebca6bu;
  h = (h ^ (h >> 13)) * 0xc2b2ae35u;
  return (h ^ (h >> 16)) >> 16;
}

template <class W, int V>
DEVICE void draw(W *out, const float *table, long long n, long long k, long long offset, long long strideN,
                 long long strideK, unsigned key) {
  const long long pieces = k / V;
  for (long long t = (long long)blockIdx.x * blockDim.x + threadIdx.x; t < n * pieces;
       t += (long long)gridDim.x * blockDim.x) {
    const long long i = t / pieces, c = t % pieces * V;
    float v[V];
#pragma unroll
    for (int j = 0; j < V; j++) v[j] = __ldg(table + place(key, (unsigned long long)(offset + i * strideN + (c + j) * strideK)));
    store<V>(out + i * k + c, v);
  }
}

} // namespace

#define DRAW(NAME, W, V)                                                                                               \
  extern "C" __global__ void draw_##NAME##_##V(W *out, const float *table, long long n, long long k, long long offset, \
                                               long long strideN, long long strideK, unsigned key) {                   \
    draw<W, V>(out, table, n, k, offset, strideN, strideK, key);                                                       \
  }
DRAW(f32, float, 1)
DRAW(f32, float, 8)
DRAW(bf16, bf16, 1)
DRAW(bf16, bf16, 8)
