// Several GPUs on a CPU: every thread of every block of every rank is a fiber, and all of them take turns in random order, so that
// protocols between kernels of different ranks run as they may on a machine: any rank may be late, any block may be last. Collectives
// of a warp and of a block are meetings. Stands in for kernels/cuda/common.cuh in tests; memory is in order here, fences do nothing.
#pragma once
#include <ucontext.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <vector>

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef long long i64;
#define DEVICE inline
#define __global__
#define __launch_bounds__(...)
#define __restrict__
#define __align__(n) alignas(n)

struct alignas(16) uint4 {
  u32 x, y, z, w;
};
struct alignas(16) int4 {
  int x, y, z, w;
};
struct alignas(8) uint2 {
  u32 x, y;
};
inline uint4 make_uint4(u32 x, u32 y, u32 z, u32 w) { return {x, y, z, w}; }
inline int4 make_int4(int x, int y, int z, int w) { return {x, y, z, w}; }
constexpr int ceil_div(int a, int b) { return (a + b - 1) / b; }
inline uint2 make_uint2(u32 x, u32 y) { return {x, y}; }

namespace machine {

struct Index {
  unsigned x, y = 1, z = 1;
};

struct Block {
  Index block, grid, threads;
  std::map<const void *, std::vector<char>> named;
  std::vector<char> dynamic;
  unsigned arrived = 0, left = 0, generation = 0;
  unsigned some_arrived = 0, some_generation = 0; // of some threads only
  struct Warp {
    u64 in[32], out[32];
    unsigned arrived = 0, generation = 0;
    const char *what = nullptr;
  };
  std::vector<Warp> warps;
};

struct Fiber {
  ucontext_t context;
  std::vector<char> stack;
  Block *block;
  unsigned thread;
  bool done = false;
  std::function<void()> body;
};

struct Machine {
  std::vector<std::unique_ptr<Block>> blocks;
  std::vector<std::unique_ptr<Fiber>> fibers;
  ucontext_t main;
  Fiber *now = nullptr;
  u64 clock = 1;
};
inline Machine *machine_now = nullptr;

inline void yield() {
  Fiber *f = machine_now->now;
  swapcontext(&f->context, &machine_now->main);
}
inline void start(unsigned high, unsigned low) {
  Fiber *f = reinterpret_cast<Fiber *>((u64)high << 32 | low);
  f->body();
  f->done = true;
  f->block->left++;
  swapcontext(&f->context, &machine_now->main);
}

/// Adds a launch to a machine; `run` runs all of them together.
inline void launch(Machine &m, unsigned grid, unsigned threads, size_t dynamic, std::function<void()> kernel) {
  for (unsigned b = 0; b < grid; b++) {
    auto block = std::make_unique<Block>();
    block->block = {b};
    block->grid = {grid};
    block->threads = {threads};
    block->dynamic.assign(dynamic + 64, (char)0x7f);
    block->warps.resize(threads / 32);
    for (unsigned t = 0; t < threads; t++) {
      auto f = std::make_unique<Fiber>();
      f->block = block.get();
      f->thread = t;
      f->body = kernel;
      m.fibers.push_back(std::move(f));
    }
    m.blocks.push_back(std::move(block));
  }
}
inline void run(Machine &m, unsigned seed) {
  machine_now = &m;
  for (auto &f : m.fibers) {
    f->stack.resize(64 << 10);
    getcontext(&f->context);
    f->context.uc_stack.ss_sp = f->stack.data();
    f->context.uc_stack.ss_size = f->stack.size();
    f->context.uc_link = &m.main;
    const u64 p = reinterpret_cast<u64>(f.get());
    makecontext(&f->context, (void (*)())start, 2, (unsigned)(p >> 32), (unsigned)p);
  }
  std::mt19937 random(seed);
  std::vector<Fiber *> order;
  for (auto &f : m.fibers) order.push_back(f.get());
  // Some blocks are slow: they run only now and then.
  std::map<Block *, unsigned> pace;
  for (auto &b : m.blocks) pace[b.get()] = random() % 3 == 0 ? 1 + random() % 40 : 1;
  for (u64 round = 0; !order.empty(); round++) {
    if (round > 2000000) std::printf("FAIL hangs\n"), std::exit(1);
    if (round % 7 == 0) std::shuffle(order.begin(), order.end(), random);
    for (Fiber *f : order) {
      if (round % pace[f->block] != 0) continue;
      m.now = f;
      m.clock += 1;
      swapcontext(&m.main, &f->context);
    }
    order.erase(std::remove_if(order.begin(), order.end(), [](Fiber *f) { return f->done; }), order.end());
  }
}

inline Block &block() { return *machine_now->now->block; }
inline unsigned thread() { return machine_now->now->thread; }
inline Index thread_index() { return {thread(), 0, 0}; }

inline const u64 *meet(const char *what, u64 value) {
  auto &w = block().warps[thread() / 32];
  if (w.arrived == 0) w.what = what;
  if (std::strcmp(w.what, what) != 0) std::printf("FAIL a warp meets for %s and %s\n", w.what, what), std::exit(1);
  w.in[thread() % 32] = value;
  const unsigned generation = w.generation;
  if (++w.arrived == 32) {
    std::memcpy(w.out, w.in, sizeof w.out);
    w.arrived = 0;
    w.generation++;
  } else {
    while (w.generation == generation) yield();
  }
  return w.out;
}
inline void barrier() {
  auto &b = block();
  if (b.left) std::printf("FAIL a barrier that some threads left\n"), std::exit(1);
  const unsigned generation = b.generation;
  if (++b.arrived == b.threads.x) {
    b.arrived = 0;
    b.generation++;
  } else {
    while (b.generation == generation) yield();
  }
}
inline void barrier_of(unsigned threads) {
  auto &b = block();
  if (thread() >= threads) std::printf("FAIL a barrier of others\n"), std::exit(1);
  const unsigned generation = b.some_generation;
  if (++b.some_arrived == threads) {
    b.some_arrived = 0;
    b.some_generation++;
  } else {
    while (b.some_generation == generation) yield();
  }
}
template <class T> T *shared(const void *key, int count) {
  auto &v = block().named[key];
  if (v.empty()) v.assign(sizeof(T) * count + 16, (char)0x7f);
  return reinterpret_cast<T *>((reinterpret_cast<u64>(v.data()) + 15) & ~15ull);
}
template <class T> T shuffle(T value, int from) {
  u64 bits = 0;
  std::memcpy(&bits, &value, sizeof value);
  const u64 *all = meet("shuffle", bits);
  T out;
  std::memcpy(&out, &all[from & 31], sizeof out);
  return out;
}

} // namespace machine

#define threadIdx (machine::thread_index())
#define blockIdx (machine::block().block)
#define gridDim (machine::block().grid)
#define blockDim (machine::block().threads)
#define DYNAMIC_SHARED(type, name) \
  type *name = reinterpret_cast<type *>((reinterpret_cast<u64>(machine::block().dynamic.data()) + 15) & ~15ull)
#define BLOCK_SHARED(type, name, count) \
  static const char name##_key = 0;     \
  type *name = machine::shared<type>(&name##_key, count)

inline void __syncthreads() { machine::barrier(); }
inline void __syncwarp() { machine::meet("syncwarp", 0); }
inline u32 __ballot_sync(u32, bool vote) {
  const u64 *all = machine::meet("ballot", vote);
  u32 out = 0;
  for (int i = 0; i < 32; i++) out |= (u32)(all[i] & 1) << i;
  return out;
}
template <class T> T __shfl_sync(u32, T v, int from) { return machine::shuffle(v, from); }
template <class T> T __shfl_xor_sync(u32, T v, int mask) { return machine::shuffle(v, (int)(machine::thread() % 32) ^ mask); }
template <class T> T __shfl_up_sync(u32, T v, int by) {
  const int lane = machine::thread() % 32;
  return machine::shuffle(v, lane >= by ? lane - by : lane);
}
inline int __popc(u32 x) { return __builtin_popcount(x); }
inline int __ffs(u32 x) { return __builtin_ffs((int)x); }
template <class T> T atomicAdd(T *p, T v) {
  const T old = *p;
  *p = old + v;
  return old;
}
template <class T> T atomicOr(T *p, T v) {
  const T old = *p;
  *p = old | v;
  return old;
}
template <class T> T atomicExch(T *p, T v) {
  const T old = *p;
  *p = v;
  return old;
}
inline u32 __float_as_uint(float x) {
  u32 u;
  std::memcpy(&u, &x, 4);
  return u;
}
inline float __uint_as_float(u32 u) {
  float x;
  std::memcpy(&x, &u, 4);
  return x;
}
inline float __fdiv_rn(float a, float b) { return a / b; }

struct alignas(2) bf16 {
  u16 bits;
};
inline float to_float(float x) { return x; }
inline float to_float(bf16 x) { return __uint_as_float((u32)x.bits << 16); }
inline bf16 to_bf16(float x) {
  const u32 u = __float_as_uint(x);
  return {(u16)((u + 0x7fff + (u >> 16 & 1)) >> 16)};
}
inline u32 pack_bf16(float lo, float hi) { return (u32)to_bf16(hi).bits << 16 | to_bf16(lo).bits; }
inline float low_bf16(u32 pair) { return __uint_as_float(pair << 16); }
inline float high_bf16(u32 pair) { return __uint_as_float(pair & 0xffff0000u); }
template <class T> T min2(T a, T b) { return a < b ? a : b; }
template <class T> T max2(T a, T b) { return a > b ? a : b; }
template <class T> struct Vec {
  static constexpr int N = 16 / sizeof(T);
};
inline void unpack16(uint4 raw, float (&x)[4], const float *) { std::memcpy(x, &raw, 16); }
inline void unpack16(uint4 r, float (&x)[8], const bf16 *) {
  const u32 w[4] = {r.x, r.y, r.z, r.w};
  for (int i = 0; i < 4; i++) x[2 * i] = low_bf16(w[i]), x[2 * i + 1] = high_bf16(w[i]);
}
inline void stVec(float *p, const float (&x)[4]) { std::memcpy(p, x, 16); }
inline void stVec(bf16 *p, const float (&x)[8]) {
  for (int i = 0; i < 8; i++) p[i] = to_bf16(x[i]);
}
inline void ldVec(const float *p, float (&x)[4]) { std::memcpy(x, p, 16); }
inline void ldVec(const bf16 *p, float (&x)[8]) {
  for (int i = 0; i < 8; i++) x[i] = to_float(p[i]);
}
inline uint4 ld_stream16(const void *p) {
  uint4 v;
  std::memcpy(&v, p, 16);
  return v;
}
inline void allow_dependents() {}
inline void wait_for_predecessors() {}
inline int lane_id() { return (int)(machine::thread() & 31); }
inline int warp_id() { return (int)(machine::thread() >> 5); }
