// The machine's instructions that expert parallelism is made of: order between GPUs, and rows to and from peers. Tests on a CPU have
// a file of this name with the same functions in C++.
#pragma once
#include "common.cuh"

namespace ep {

DEVICE u32 ld_acquire_sys(const u32 *p) {
  u32 v;
  asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
  return v;
}
DEVICE u64 ld_acquire_sys(const u64 *p) {
  u64 v;
  asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(v) : "l"(p) : "memory");
  return v;
}
DEVICE void st_release_sys(u32 *p, u32 v) { asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory"); }
DEVICE u64 ld_relaxed_sys(const u64 *p) {
  u64 v;
  asm volatile("ld.relaxed.sys.global.u64 %0, [%1];" : "=l"(v) : "l"(p) : "memory");
  return v;
}
DEVICE void st_relaxed_sys(u32 *p, u32 v) { asm volatile("st.relaxed.sys.global.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory"); }
DEVICE void st_relaxed_sys(u64 *p, u64 v) { asm volatile("st.relaxed.sys.global.u64 [%0], %1;" ::"l"(p), "l"(v) : "memory"); }
DEVICE void fence_sys() { asm volatile("fence.acq_rel.sys;" ::: "memory"); }
/// The first `threads` threads of a block meet.
DEVICE void sync_threads(int threads) { asm volatile("bar.sync 1, %0;" ::"r"(threads) : "memory"); }
DEVICE u32 ld_volatile(const u32 *p) { return *reinterpret_cast<const volatile u32 *>(p); }
DEVICE u64 now_ns() {
  u64 t;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t));
  return t;
}

/// 16 bytes that were written while this kernel ran, or lie at a peer: not kept in L1.
DEVICE uint4 ld_peer(const void *p) {
  uint4 v;
  asm volatile("ld.relaxed.sys.global.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p) : "memory");
  return v;
}
DEVICE void st_peer(void *p, uint4 v) {
  asm volatile("st.global.L1::no_allocate.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(p), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w) : "memory");
}

/// Two floats to e4m3, `lo` in the lower byte; nearest even, beyond 448 becomes 448.
DEVICE u32 pack_e4m3(float lo, float hi) {
  u16 y;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(y) : "f"(hi), "f"(lo));
  return y;
}

DEVICE float unpack_e4m3(u8 code) {
  float y;
  asm("{\n .reg .b32 pair;\n .reg .f16 lo, hi;\n cvt.rn.f16x2.e4m3x2 pair, %1;\n mov.b32 {lo, hi}, pair;\n cvt.f32.f16 %0, lo;\n}"
      : "=f"(y)
      : "h"((u16)code));
  return y;
}

} // namespace ep
