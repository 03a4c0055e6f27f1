// A GPU's block of threads on a CPU, so that kernels can be checked fragment by fragment where there is no GPU. Every thread is
// a fiber; collectives of a warp (shuffle, ldmatrix, mma) and of a block (barrier) are meetings: the last to arrive does the
// work for all, by the words of the PTX ISA. What a GPU leaves open is chosen by `Choices`, and tests run several: in which
// order threads and blocks run, and whether an asynchronous copy happens at once or as late as its wait allows. Shared
// memory starts as NaNs. A meeting that some threads miss, or attend with another operation, is an error.
#pragma once
#include <setjmp.h>
#include <ucontext.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <random>
#include <vector>

#define __global__
#define __device__
#define __forceinline__ inline
#define __noinline__
#define __launch_bounds__(...)
#define __shared__ static
#define __align__(n) alignas(n)
#define __restrict__

struct dim3 {
  unsigned x = 1, y = 1, z = 1;
};
struct alignas(8) float2 {
  float x, y;
};
struct alignas(16) float4 {
  float x, y, z, w;
};
struct alignas(8) uint2 {
  unsigned x, y;
};
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};
inline float2 make_float2(float x, float y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
inline int min(int a, int b) { return a < b ? a : b; }
inline int max(int a, int b) { return a > b ? a : b; }
inline int atomicCAS(int *p, int expected, int value) {
  const int old = *p;
  if (old == expected) *p = value;
  return old;
}
inline int __popc(unsigned x) { return __builtin_popcount(x); }

namespace machine {

struct Choices {
  bool copiesAtOnce = false;
  bool backwards = false;
  unsigned seed = 0; // 0: threads in order
};

struct Copy {
  unsigned to;
  const void *from;
  int bytes;
};

// A place where `size` threads meet.
struct Meeting {
  int size = 0, arrived = 0;
  const char *what = nullptr;
  uint64_t turn = 0;
};

struct Lane {
  const void *in[3];
  void *out;
  unsigned address;
};

struct Fiber {
  dim3 index;
  int number = 0;
  ucontext_t start;
  jmp_buf here;
  bool started = false, done = false;
  std::vector<char> stack;
  std::deque<std::vector<Copy>> groups;
  std::vector<Copy> open;
};

inline Choices choices;
inline std::vector<Fiber> fibers;
inline std::vector<Meeting> warps, groups;
inline std::vector<Lane> lanes;
inline Meeting block;
inline Fiber *current = nullptr;
inline jmp_buf scheduler;
inline ucontext_t home;
inline std::function<void()> body;
inline uint64_t progress = 0;
inline std::vector<unsigned char> sharedStore;
inline unsigned char *shared = nullptr;
inline size_t sharedBytes = 0;

[[noreturn]] inline void fail(const char *text, const char *more = "") {
  std::fprintf(stderr, "emulator: %s%s (thread %d)\n", text, more, current ? current->number : -1);
  std::exit(3);
}

inline unsigned char *sharedAt(unsigned address, size_t bytes) {
  if (address % bytes) fail("shared address not aligned");
  if (address + bytes > sharedBytes) fail("shared address outside the block's memory");
  return shared + address;
}

} // namespace machine

inline dim3 threadIdx, blockIdx, gridDim, blockDim;

namespace machine {

inline void yield() {
  if (_setjmp(current->here) == 0) _longjmp(scheduler, 1);
}

// `work` runs once, by the last to arrive, for everybody.
template <class Work> void meet(Meeting &m, const char *what, Work work) {
  if (m.arrived == 0) m.what = what;
  if (std::strcmp(m.what, what) != 0) fail("threads met for different things: ", what);
  progress++;
  if (++m.arrived == m.size) {
    work();
    m.arrived = 0;
    m.turn++;
    return;
  }
  const uint64_t turn = m.turn;
  while (m.turn == turn) yield();
}

inline void perform(const Copy &c) {
  unsigned char *to = sharedAt(c.to, 16);
  if (c.bytes) std::memcpy(to, c.from, c.bytes);
  std::memset(to + c.bytes, 0, 16 - c.bytes);
}

inline void runFiber() {
  body();
  if (!current->open.empty() || !current->groups.empty()) {
    for (auto &group : current->groups)
      if (!group.empty()) fail("a thread left with copies under way");
    if (!current->open.empty()) fail("a thread left with copies of no group");
  }
  current->done = true;
  progress++;
  _longjmp(scheduler, 1);
}

inline void runBlock(dim3 at, unsigned threads, size_t bytes) {
  blockIdx = at;
  sharedStore.assign(bytes + 1024, 0xff);
  shared = sharedStore.data() + (1024 - reinterpret_cast<uintptr_t>(sharedStore.data()) % 1024) % 1024;
  sharedBytes = bytes;
  if (fibers.size() < threads) fibers.resize(threads);
  warps.assign((threads + 31) / 32, Meeting{32, 0, nullptr, 0});
  groups.assign((threads + 127) / 128, Meeting{128, 0, nullptr, 0});
  lanes.assign(threads, Lane{});
  block = Meeting{(int)threads, 0, nullptr, 0};
  std::vector<int> order(threads);
  for (unsigned i = 0; i < threads; i++) {
    Fiber &f = fibers[i];
    f.index = {i, 0, 0};
    f.number = (int)i;
    f.started = f.done = false;
    f.groups.clear();
    f.open.clear();
    if (f.stack.empty()) f.stack.resize(128 * 1024);
    order[i] = (int)i;
  }
  std::mt19937 random(choices.seed + at.x * 7 + at.y * 13 + at.z * 17);
  // Warps that may run: with a seed, some rest for a while, so that others get as far ahead as barriers let them.
  uint64_t awake = ~0ull;
  for (unsigned round = 0;; round++) {
    if (choices.seed) {
      std::shuffle(order.begin(), order.end(), random);
      if (round % 64 == 0) awake = random() | (uint64_t)random() << 32;
    }
    bool alive = false;
    const uint64_t before = progress;
    for (volatile unsigned k = 0; k < threads; k = k + 1) {
      Fiber &f = fibers[order[k]];
      if (f.done) continue;
      alive = true;
      if (!(awake >> (f.number / 32 % 64) & 1)) continue;
      current = &f;
      threadIdx = f.index;
      if (_setjmp(scheduler) == 0) {
        if (f.started) _longjmp(f.here, 1);
        f.started = true;
        getcontext(&f.start);
        f.start.uc_stack.ss_sp = f.stack.data();
        f.start.uc_stack.ss_size = f.stack.size();
        f.start.uc_link = &home;
        makecontext(&f.start, runFiber, 0);
        setcontext(&f.start);
      }
    }
    if (!alive) break;
    if (progress == before && awake != ~0ull) awake = ~0ull;
    else if (progress == before) fail("threads wait for a meeting that others miss: ", block.arrived ? "block barrier" : "a warp's");
  }
}

// kernel<<<grid, threads, bytes>>>
template <class Kernel> void launch(dim3 grid, unsigned threads, size_t bytes, Kernel kernel) {
  gridDim = grid;
  blockDim = {threads, 1, 1};
  body = kernel;
  const unsigned blocks = grid.x * grid.y * grid.z;
  for (unsigned k = 0; k < blocks; k++) {
    const unsigned b = choices.backwards ? blocks - 1 - k : k;
    runBlock({b % grid.x, b / grid.x % grid.y, b / (grid.x * grid.y)}, threads, bytes);
  }
}

inline Meeting &myWarp() { return warps[current->number / 32]; }
inline Lane *myLanes() { return &lanes[current->number / 32 * 32]; }
// Four warps that issue matrix instructions together.
inline Meeting &myGroup() { return groups[current->number / 128]; }
inline Lane *myGroupLanes() { return &lanes[current->number / 128 * 128]; }
inline Lane &myLane() { return lanes[current->number]; }

} // namespace machine
