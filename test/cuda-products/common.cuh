// The functions of kernels/cuda/common.cuh that the kernels of products use, in C++ on the emulated machine (../cuda-emulator/machine.h),
// by the words of the PTX ISA. Barriers in shared memory count arrivals and bytes; bulk copies happen at once or, by choice, when
// somebody waits for them.
#pragma once
#include <algorithm>
#include <cstddef>
#include <map>
#include <utility>

#include "machine.h"

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef long long i64;

#define DEVICE inline
#define __grid_constant__
#define DYNAMIC_SHARED(type, name) type *name = reinterpret_cast<type *>(machine::shared)
#define BLOCK_SHARED(type, name, count) type *name = reinterpret_cast<type *>(machine::shared)

struct int4 {
  int x, y, z, w;
};
inline int4 make_int4(int x, int y, int z, int w) { return {x, y, z, w}; }
inline uint4 make_uint4(u32 x, u32 y, u32 z, u32 w) { return {x, y, z, w}; }

struct alignas(2) bf16 {
  u16 bits;
};
inline float __uint_as_float(u32 bits) {
  float x;
  std::memcpy(&x, &bits, 4);
  return x;
}
inline u32 __float_as_uint(float x) {
  u32 bits;
  std::memcpy(&bits, &x, 4);
  return bits;
}
inline float to_float(float x) { return x; }
inline float to_float(bf16 x) { return __uint_as_float((u32)x.bits << 16); }
inline bf16 to_bf16(float x) {
  const u32 bits = __float_as_uint(x);
  return {(u16)((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16)};
}
inline u32 pack_bf16(float lo, float hi) { return to_bf16(lo).bits | (u32)to_bf16(hi).bits << 16; }
template <class T> T from_float(float x);
template <> inline float from_float<float>(float x) { return x; }
template <> inline bf16 from_float<bf16>(float x) { return to_bf16(x); }
template <class T> float ldF(const T *p) { return to_float(*p); }
template <class T> void stF(T *p, float x) { *p = from_float<T>(x); }
constexpr int ceil_div(int a, int b) { return (a + b - 1) / b; }
template <class T> T min2(T a, T b) { return a < b ? a : b; }
template <class T> T max2(T a, T b) { return a > b ? a : b; }
inline float fast_exp(float x) { return expf(x); }
inline float __fdividef(float a, float b) { return a / b; }

inline void aligned16(const void *p) {
  if ((uintptr_t)p % 16) machine::fail("an address that is no multiple of 16");
}
inline uint4 ld_stream16(const void *p) {
  aligned16(p);
  return *static_cast<const uint4 *>(p);
}
inline void unpack16(uint4 raw, float (&x)[8], const bf16 *) {
  const u32 words[4] = {raw.x, raw.y, raw.z, raw.w};
  for (int i = 0; i < 8; i++) x[i] = __uint_as_float(i % 2 ? words[i / 2] & 0xffff0000u : words[i / 2] << 16);
}
template <class T> struct Vec {
  static constexpr int N = 16 / sizeof(T);
};
template <class T> void ldVec(const T *p, float (&x)[Vec<T>::N]) {
  aligned16(p);
  for (int i = 0; i < Vec<T>::N; i++) x[i] = to_float(p[i]);
}
template <class T> void stVec(T *p, const float (&x)[Vec<T>::N]) {
  aligned16(p);
  for (int i = 0; i < Vec<T>::N; i++) p[i] = from_float<T>(x[i]);
}

// ---------------------------------------------------------------------------------------------- threads

inline int lane_id() { return threadIdx.x & 31; }
inline int warp_id() { return threadIdx.x >> 5; }
inline void __syncwarp() { machine::meet(machine::myWarp(), "warp barrier", [] {}); }
inline void __syncthreads() { machine::meet(machine::block, "block barrier", [] {}); }
inline int atomicAdd(int *p, int value) {
  const int old = *p;
  *p += value;
  return old;
}

// What every lane of a warp brings, and what each takes from it.
template <class T, class Take> T together(T x, const char *what, Take take) {
  T result = x;
  machine::myLane().in[0] = &x;
  machine::myLane().out = &result;
  machine::Lane *lanes = machine::myLanes();
  machine::meet(machine::myWarp(), what, [lanes] {
    T *copy = new T[32];
    for (int l = 0; l < 32; l++) copy[l] = *static_cast<const T *>(lanes[l].in[0]);
    for (int l = 0; l < 32; l++) lanes[l].in[1] = copy;
  });
  const T *all = static_cast<const T *>(machine::myLane().in[1]);
  result = take(all);
  // The last to look clears away.
  machine::meet(machine::myWarp(), what, [all] { delete[] all; });
  return result;
}
template <class T> T __shfl_sync(u32, T x, int lane) {
  return together(x, "shuffle", [lane](const T *all) { return all[lane & 31]; });
}
template <class T> T __shfl_xor_sync(u32, T x, int mask) { return __shfl_sync(0, x, lane_id() ^ mask); }
template <class T> T __shfl_up_sync(u32, T x, int d) { return __shfl_sync(0, x, lane_id() >= d ? lane_id() - d : lane_id()); }

inline float warp_sum(float x) {
  for (int d = 16; d > 0; d >>= 1) x += __shfl_xor_sync(0, x, d);
  return x;
}

// What the kernel before writes, at the last moment: when somebody waits for it.
inline std::function<void()> predecessor;
inline void allow_dependents() {}
inline void wait_for_predecessors() {
  if (predecessor) predecessor();
  predecessor = nullptr;
}

// ---------------------------------------------------------------------------------------------- copies and matrices

inline u32 shared_address(const void *p) {
  const ptrdiff_t at = static_cast<const u8 *>(p) - machine::shared;
  if (at < 0 || (size_t)at > machine::sharedBytes) machine::fail("not an address of shared memory");
  return (u32)at;
}
inline void cp_async16(u32 to, const void *from, bool valid = true) {
  aligned16(from);
  const machine::Copy copy{to, from, valid ? 16 : 0};
  if (machine::choices.copiesAtOnce) machine::perform(copy);
  else machine::current->open.push_back(copy);
}
inline void cp_async_commit() {
  machine::current->groups.push_back(machine::current->open);
  machine::current->open.clear();
}
template <int PENDING> void cp_async_wait() {
  auto &groups = machine::current->groups;
  for (; (int)groups.size() > PENDING; groups.pop_front())
    for (const auto &copy : groups.front()) machine::perform(copy);
}

inline void ldmatrix_x4(u32 (&r)[4], u32 address) {
  machine::myLane().address = address;
  machine::myLane().out = r;
  machine::Lane *lanes = machine::myLanes();
  machine::meet(machine::myWarp(), "ldmatrix.x4", [lanes] {
    for (int j = 0; j < 4; j++) {
      u16 m[8][8];
      for (int i = 0; i < 8; i++) std::memcpy(m[i], machine::sharedAt(lanes[8 * j + i].address, 16), 16);
      for (int l = 0; l < 32; l++)
        static_cast<u32 *>(lanes[l].out)[j] = m[l / 4][2 * (l % 4)] | (u32)m[l / 4][2 * (l % 4) + 1] << 16;
    }
  });
}

inline float half_of(u32 pair, int which) { return __uint_as_float(which ? pair & 0xffff0000u : pair << 16); }

inline void mma_bf16(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
  const u32 b[2] = {b0, b1};
  machine::myLane().in[0] = a;
  machine::myLane().in[1] = b;
  machine::myLane().out = c;
  machine::Lane *lanes = machine::myLanes();
  machine::meet(machine::myWarp(), "mma", [lanes] {
    float A[16][16], B[16][8];
    for (int l = 0; l < 32; l++) {
      const int g = l / 4, t = l % 4;
      for (int r = 0; r < 4; r++)
        for (int e = 0; e < 2; e++)
          A[g + (r & 1) * 8][2 * t + e + (r >> 1) * 8] = half_of(static_cast<const u32 *>(lanes[l].in[0])[r], e);
      for (int r = 0; r < 2; r++)
        for (int e = 0; e < 2; e++) B[2 * t + e + r * 8][g] = half_of(static_cast<const u32 *>(lanes[l].in[1])[r], e);
    }
    for (int l = 0; l < 32; l++)
      for (int r = 0; r < 4; r++) {
        float &sum = static_cast<float *>(lanes[l].out)[r];
        for (int k = 0; k < 16; k++) sum += A[l / 4 + (r >> 1) * 8][k] * B[k][2 * (l % 4) + (r & 1)];
      }
  });
}

// ---------------------------------------------------------------------------------------------- sm_90

struct TensorMap {
  const u8 *base;
  u64 sizes[5], strides[4];
  int box[5];
};

struct Barrier {
  int count = 0, pending = 0;
  long bytes = 0;
  u32 phase = 0;
};
inline std::map<u32, Barrier> barriers;
struct LateCopy {
  u32 barrier;
  std::function<void()> perform;
};
inline std::vector<LateCopy> lateCopies;

inline Barrier &barrierAt(u32 at) {
  const auto found = barriers.find(at);
  if (found == barriers.end()) machine::fail("no barrier was made here");
  return found->second;
}
inline void arrived(Barrier &b, int arrivals, long bytes) {
  b.pending -= arrivals;
  b.bytes += bytes;
  machine::progress++;
  if (b.pending < 0) machine::fail("more arrivals at a barrier than it counts");
  if (b.pending > 0 || b.bytes != 0) return;
  b.phase ^= 1;
  b.pending = b.count;
}
inline void mbarrier_init(u32 at, u32 arrivals) {
  machine::sharedAt(at, 8);
  barriers[at] = {(int)arrivals, (int)arrivals, 0, 0};
}
inline void mbarrier_init_fence() {}
inline void mbarrier_arrive_expect(u32 at, u32 bytes) { arrived(barrierAt(at), 1, bytes); }
inline void mbarrier_arrive(u32 at) { arrived(barrierAt(at), 1, 0); }
inline void mbarrier_wait(u32 at, u32 parity) {
  Barrier &b = barrierAt(at);
  while ((b.phase & 1) == parity) {
    const auto late = std::find_if(lateCopies.begin(), lateCopies.end(), [at](const LateCopy &c) { return c.barrier == at; });
    if (late != lateCopies.end()) {
      const LateCopy copy = *late;
      lateCopies.erase(late);
      copy.perform();
    } else {
      machine::yield();
    }
  }
}
inline void queueCopy(u32 barrier, std::function<void()> perform) {
  if (machine::choices.copiesAtOnce) perform();
  else lateCopies.push_back({barrier, std::move(perform)});
}
inline void tma_prefetch_map(const TensorMap *) {}
// A box of rows of 64 bf16 with 128-byte swizzle: bits 4 to 6 of the address are flipped by bits 7 to 9. Outside: zeros.
inline void tma_load_5d(u32 to, const TensorMap *from, int x, int y, int z, int v, int w, u32 barrier) {
  if (to % 1024) machine::fail("a swizzled box at no multiple of 1024");
  queueCopy(barrier, [=, map = *from] {
    const int first[5] = {x, y, z, v, w};
    int elements = 1;
    for (int edge : map.box) elements *= edge ? edge : 1;
    for (int i = 0; i < elements; i++) {
      bool inside = true;
      u64 offset = 0;
      for (int d = 0, left = i; d < 5 && map.box[d]; left /= map.box[d], d++) {
        const i64 index = first[d] + left % map.box[d];
        inside = inside && index >= 0 && (u64)index < map.sizes[d];
        offset += index * (d ? map.strides[d - 1] : 2);
      }
      u16 value = 0;
      if (inside) value = *reinterpret_cast<const u16 *>(map.base + offset);
      const u32 plain = to + i * 2;
      std::memcpy(machine::sharedAt(plain ^ ((plain >> 7 & 7) << 4), 2), &value, 2);
    }
    arrived(barrierAt(barrier), 0, -(long)(elements * 2));
  });
}
// Stores are done when somebody waits for them or, by choice, at once; what lies outside is left out.
inline std::map<int, std::vector<std::function<void()>>> openStores, sentStores;
inline void tma_store_2d(const TensorMap *to, int x, int y, u32 from) {
  // Pieces of 16 bytes are swizzled over 64 or 128 bytes.
  const u32 rowBytes = to->box[0] * 2, flips = rowBytes == 128 ? 7 : 3;
  if (rowBytes != 128 && rowBytes != 64) machine::fail("a box of another width than its swizzle");
  if (from % (rowBytes * 8)) machine::fail("a swizzled box at no multiple of its pattern");
  const auto store = [=, map = *to] {
    for (int i = 0; i < map.box[0] * map.box[1]; i++) {
      const i64 column = x + i % map.box[0], row = y + i / map.box[0];
      if ((u64)column >= map.sizes[0] || (u64)row >= map.sizes[1]) continue;
      const u32 plain = from + i * 2;
      std::memcpy(const_cast<u8 *>(map.base) + row * map.strides[0] + column * 2, machine::sharedAt(plain ^ ((plain >> 7 & flips) << 4), 2), 2);
    }
  };
  if (machine::choices.copiesAtOnce) store();
  else openStores[machine::current->number].push_back(store);
}
inline void bulk_commit() {
  auto &open = openStores[machine::current->number];
  auto &sent = sentStores[machine::current->number];
  sent.insert(sent.end(), open.begin(), open.end());
  open.clear();
}
template <int PENDING> void bulk_wait_read() {
  static_assert(PENDING == 0);
  auto &sent = sentStores[machine::current->number];
  for (auto &store : sent) store();
  sent.clear();
}
inline void fence_async_shared() {}
inline std::map<int, machine::Meeting> namedBarriers;
inline void sync_threads(int number, int threads) {
  machine::Meeting &meeting = namedBarriers[number];
  meeting.size = threads;
  machine::meet(meeting, "named barrier", [] {});
}
inline void store_matrices_transposed(u32 address, const u32 (&w)[4]) {
  machine::myLane().address = address;
  machine::myLane().in[0] = w;
  machine::Lane *lanes = machine::myLanes();
  machine::meet(machine::myWarp(), "stmatrix", [lanes] {
    for (int m = 0; m < 4; m++)
      for (int l = 0; l < 32; l++)
        for (int e = 0; e < 2; e++) {
          const u16 bits = (u16)(static_cast<const u32 *>(lanes[l].in[0])[m] >> 16 * e);
          std::memcpy(machine::sharedAt(lanes[8 * m + 2 * (l % 4) + e].address + 2 * (l / 4), 2), &bits, 2);
        }
  });
}
inline uint4 ld_shared16(u32 address) {
  uint4 v;
  std::memcpy(&v, machine::sharedAt(address, 16), 16);
  return v;
}
inline void tma_load_3d(u32 to, const TensorMap *map, int x, int y, int z, u32 barrier) { tma_load_5d(to, map, x, y, z, 0, 0, barrier); }
inline void tma_load_2d(u32 to, const TensorMap *map, int x, int y, u32 barrier) { tma_load_3d(to, map, x, y, 0, barrier); }
template <int N> void registers_decrease() {}
template <int N> void registers_increase() {}
inline void wgmma_fence() {}
inline void wgmma_commit() {}
template <int PENDING> void wgmma_wait() {}
inline void wgmma_keep(float &) {}
inline u64 wgmma_descriptor_128B(u32 address) {
  if (address % 1024) machine::fail("a matrix at no multiple of 1024");
  return (u64)(address >> 4) | (u64)1 << 16 | (u64)(1024 >> 4) << 32 | (u64)1 << 62;
}

// What is left of a block when the next one begins.
inline void endOfBlock() {
  if (!lateCopies.empty()) machine::fail("a block ended with copies under way");
  for (const auto &[thread, stores] : openStores)
    if (!stores.empty()) machine::fail("a block ended with stores that nobody committed");
  for (const auto &[thread, stores] : sentStores)
    if (!stores.empty()) machine::fail("a block ended before its stores were read");
  namedBarriers.clear();
  barriers.clear();
}
