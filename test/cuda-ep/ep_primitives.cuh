// kernels/cuda/ep_primitives.cuh in C++: whatever looks at a word of a peer lets others run first.
#pragma once
#include "common.cuh"

namespace ep {

template <class T> T look(const T *p) {
  machine::yield();
  return *p;
}
inline u32 ld_acquire_sys(const u32 *p) { return look(p); }
inline u64 ld_acquire_sys(const u64 *p) { return look(p); }
inline void st_release_sys(u32 *p, u32 v) { machine::yield(), *p = v; }
inline u64 ld_relaxed_sys(const u64 *p) { return look(p); }
inline void st_relaxed_sys(u32 *p, u32 v) { machine::yield(), *p = v; }
inline void st_relaxed_sys(u64 *p, u64 v) { machine::yield(), *p = v; }
inline void fence_sys() {}
inline void sync_threads(int threads) { machine::barrier_of((unsigned)threads); }
inline u32 ld_volatile(const u32 *p) { return *p; }
/// A nanosecond a turn.
inline u64 now_ns() { return machine::machine_now->clock; }
inline uint4 ld_peer(const void *p) { return ld_stream16(p); }
inline void st_peer(void *p, uint4 v) { std::memcpy(p, &v, 16); }
inline u32 pack_e4m3(float lo, float hi) {
  auto one = [](float v) -> u32 {
    const u32 bits = __float_as_uint(v), a = bits & 0x7fffffffu;
    const u32 code = a < 0x3c800000u ? __float_as_uint(__uint_as_float(a) + 16384.0f) - 0x46800000u : ((a + 0x7ffffu + (a >> 20 & 1)) >> 20) - 960;
    return min2(code, 0x7eu) | (bits >> 24 & 0x80u);
  };
  return one(lo) | one(hi) << 8;
}

} // namespace ep
