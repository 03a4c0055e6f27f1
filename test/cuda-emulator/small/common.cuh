// What the small kernels use of kernels/cuda/common.cuh, in C++ by the words of the PTX ISA (see machine.h).
#pragma once
#include <algorithm>

#include "machine.h"

#define DEVICE inline
typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef long long i64;

template <class To, class From> To sameBits(From x) {
  static_assert(sizeof(To) == sizeof(From), "bits of another number");
  To y;
  std::memcpy(&y, &x, sizeof y);
  return y;
}
inline unsigned __float_as_uint(float x) { return sameBits<unsigned>(x); }
inline float __uint_as_float(unsigned x) { return sameBits<float>(x); }
inline unsigned __umulhi(unsigned a, unsigned b) { return (unsigned)((u64)a * b >> 32); }
inline float __expf(float x) { return expf(x); }
inline float __logf(float x) { return logf(x); }
inline float fast_exp2(float x) { return exp2f(x); }
inline float rsqrtf(float x) { return 1.f / sqrtf(x); }
inline int __clz(unsigned x) { return x ? __builtin_clz(x) : 32; }
inline void __threadfence() {}
template <class T, class U> T atomicAdd(T *p, U x) {
  const T old = *p;
  *p = old + x;
  return old;
}
inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }
#define NEG_INF (-HUGE_VALF)

// A kernel runs when all before it have finished.
inline void allow_dependents() {}
inline void wait_for_predecessors() {}
inline void __syncthreads() { machine::meet(machine::block, "barrier", [] {}); }
inline void __syncwarp() { machine::meet(machine::myWarp(), "warp barrier", [] {}); }

template <class T> T fromLane(T x, unsigned lane) {
  T result;
  machine::Lane &me = machine::myLane();
  me.in[0] = &x;
  me.out = &result;
  me.address = lane & 31;
  machine::meet(machine::myWarp(), "shuffle", [] {
    machine::Lane *all = machine::myLanes();
    for (int i = 0; i < 32; i++) std::memcpy(all[i].out, all[all[i].address].in[0], sizeof(T));
  });
  return result;
}
inline unsigned laneOf() { return threadIdx.x & 31; }
template <class T> T __shfl_sync(unsigned, T x, int lane) { return fromLane(x, lane); }
template <class T> T __shfl_xor_sync(unsigned, T x, int mask) { return fromLane(x, laneOf() ^ mask); }
template <class T> T __shfl_up_sync(unsigned, T x, int delta) {
  return fromLane(x, (int)laneOf() >= delta ? laneOf() - delta : laneOf());
}
// All lanes get `fold` over the lanes' words.
template <class Fold> unsigned overWarp(unsigned x, const char *what, Fold fold) {
  unsigned result;
  machine::Lane &me = machine::myLane();
  me.in[0] = &x;
  me.out = &result;
  machine::meet(machine::myWarp(), what, [fold] {
    machine::Lane *all = machine::myLanes();
    unsigned words[32];
    for (int i = 0; i < 32; i++) words[i] = *static_cast<const unsigned *>(all[i].in[0]);
    const unsigned folded = fold(words);
    for (int i = 0; i < 32; i++) *static_cast<unsigned *>(all[i].out) = folded;
  });
  return result;
}
inline unsigned __reduce_max_sync(unsigned, unsigned x) {
  return overWarp(x, "maximum", [](const unsigned *w) { return *std::max_element(w, w + 32); });
}
inline unsigned __reduce_min_sync(unsigned, unsigned x) {
  return overWarp(x, "minimum", [](const unsigned *w) { return *std::min_element(w, w + 32); });
}
inline unsigned __ballot_sync(unsigned, bool x) {
  return overWarp(x, "ballot", [](const unsigned *w) {
    unsigned bits = 0;
    for (int i = 0; i < 32; i++) bits |= (w[i] ? 1u : 0u) << i;
    return bits;
  });
}

struct alignas(2) bf16 {
  u16 bits;
};
inline float to_float(float x) { return x; }
inline float to_float(bf16 x) { return __uint_as_float((unsigned)x.bits << 16); }
inline bf16 to_bf16(float x) {
  const unsigned b = __float_as_uint(x);
  if ((b & 0x7fffffffu) > 0x7f800000u) return {0x7fff};
  return {(u16)((b + 0x7fffu + (b >> 16 & 1u)) >> 16)};
}
inline unsigned pack_bf16(float lo, float hi) { return to_bf16(lo).bits | (unsigned)to_bf16(hi).bits << 16; }
inline float low_bf16(unsigned pair) { return __uint_as_float(pair << 16); }
inline float high_bf16(unsigned pair) { return __uint_as_float(pair & 0xffff0000u); }
template <class T> T from_float(float x);
template <> inline float from_float<float>(float x) { return x; }
template <> inline bf16 from_float<bf16>(float x) { return to_bf16(x); }

inline int lane_id() { return threadIdx.x & 31; }
inline int warp_id() { return threadIdx.x >> 5; }
inline float warp_sum(float x) {
  for (int d = 16; d > 0; d >>= 1) x += __shfl_xor_sync(~0u, x, d);
  return x;
}
inline float warp_max(float x) {
  for (int d = 16; d > 0; d >>= 1) x = fmaxf(x, __shfl_xor_sync(~0u, x, d));
  return x;
}
