// The functions of kernels/cuda/attention_primitives.cuh in C++, by the words of the PTX ISA (see machine.h).
#pragma once
#include <algorithm>

#include "machine.h"

#define ATT_DEVICE inline
inline float __int_as_float(int x) {
  float y;
  std::memcpy(&y, &x, 4);
  return y;
}
#define ATT_DYNAMIC_SHARED(name) unsigned char *name = machine::shared

namespace att {

typedef unsigned short bf16_bits;

struct alignas(16) Quad {
  unsigned x, y, z, w;
};

inline unsigned sharedAddress(const void *p) { return (unsigned)((const unsigned char *)p - machine::shared); }

inline unsigned short roundToBf16(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, 4);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return 0x7fff;
  return (unsigned short)((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}
inline float widen(unsigned short h) {
  const uint32_t bits = (uint32_t)h << 16;
  float x;
  std::memcpy(&x, &bits, 4);
  return x;
}

inline unsigned pack(float lo, float hi) { return roundToBf16(lo) | (unsigned)roundToBf16(hi) << 16; }
inline float power2(float x) { return exp2f(x); }
inline float product(float x, float y) { return x * y; }

inline void copy16(unsigned to, const void *from, int bytes) {
  if (bytes != 0 && bytes != 16) machine::fail("a copy of neither 0 nor 16 bytes");
  if ((uintptr_t)from % 16) machine::fail("a copy from an address that is no multiple of 16");
  const machine::Copy copy{to, from, bytes};
  if (machine::choices.copiesAtOnce) machine::perform(copy);
  else machine::current->open.push_back(copy);
}
inline void commitCopies() {
  machine::current->groups.push_back(machine::current->open);
  machine::current->open.clear();
}
template <int N> inline void waitCopies() {
  auto &groups = machine::current->groups;
  while ((int)groups.size() > N) {
    for (const auto &copy : groups.front()) machine::perform(copy);
    groups.pop_front();
  }
}

template <bool TRANSPOSED> inline void matrices(unsigned (&r)[4], unsigned address) {
  machine::myLane().address = address;
  machine::myLane().out = r;
  machine::Lane *lanes = machine::myLanes();
  machine::meet(machine::myWarp(), TRANSPOSED ? "ldmatrix.trans" : "ldmatrix", [lanes] {
    for (int j = 0; j < 4; j++) {
      unsigned short m[8][8];
      for (int i = 0; i < 8; i++) std::memcpy(m[i], machine::sharedAt(lanes[8 * j + i].address, 16), 16);
      for (int lane = 0; lane < 32; lane++) {
        const int g = lane / 4, t = lane % 4;
        const unsigned lo = TRANSPOSED ? m[2 * t][g] : m[g][2 * t], hi = TRANSPOSED ? m[2 * t + 1][g] : m[g][2 * t + 1];
        static_cast<unsigned *>(lanes[lane].out)[j] = lo | hi << 16;
      }
    }
  });
}
inline void loadMatrices(unsigned (&r)[4], unsigned address) { matrices<false>(r, address); }
inline void loadMatricesTransposed(unsigned (&r)[4], unsigned address) { matrices<true>(r, address); }

inline unsigned opaque(unsigned x) { return x; }

inline void multiply(float (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
  const unsigned b[2] = {b0, b1};
  machine::myLane().in[0] = a;
  machine::myLane().in[1] = b;
  machine::myLane().out = c;
  machine::Lane *lanes = machine::myLanes();
  machine::meet(machine::myWarp(), "mma", [lanes] {
    float A[16][16], B[16][8];
    for (int lane = 0; lane < 32; lane++) {
      const int g = lane / 4, t = lane % 4;
      const unsigned *ra = static_cast<const unsigned *>(lanes[lane].in[0]), *rb = static_cast<const unsigned *>(lanes[lane].in[1]);
      for (int r = 0; r < 4; r++)
        for (int e = 0; e < 2; e++) A[g + (r & 1) * 8][2 * t + e + (r >> 1) * 8] = widen((unsigned short)(ra[r] >> (16 * e)));
      for (int r = 0; r < 2; r++)
        for (int e = 0; e < 2; e++) B[2 * t + e + r * 8][g] = widen((unsigned short)(rb[r] >> (16 * e)));
    }
    for (int lane = 0; lane < 32; lane++) {
      const int g = lane / 4, t = lane % 4;
      float *out = static_cast<float *>(lanes[lane].out);
      for (int r = 0; r < 4; r++) {
        const int m = g + (r >> 1) * 8, n = 2 * t + (r & 1);
        double sum = out[r];
        for (int k = 0; k < 16; k++) sum += (double)A[m][k] * B[k][n];
        out[r] = (float)sum;
      }
    }
  });
}

template <class T> inline T exchanged(T x, int from, const char *what) {
  T result = x;
  machine::Lane &mine = machine::myLane();
  mine.in[0] = &x;
  mine.address = (unsigned)from;
  mine.out = &result;
  machine::Lane *lanes = machine::myLanes();
  machine::meet(machine::myWarp(), what, [lanes] {
    T values[32];
    for (int l = 0; l < 32; l++) values[l] = *static_cast<const T *>(lanes[l].in[0]);
    for (int l = 0; l < 32; l++) *static_cast<T *>(lanes[l].out) = values[lanes[l].address & 31];
  });
  return result;
}
inline float shuffleXor(float x, int mask) { return exchanged(x, (machine::current->number & 31) ^ mask, "shuffle xor"); }
inline int shuffle(int x, int lane) { return exchanged(x, lane, "shuffle"); }
inline unsigned ballot(bool x) {
  unsigned result = 0;
  int vote = x;
  machine::myLane().in[0] = &vote;
  machine::myLane().out = &result;
  machine::Lane *lanes = machine::myLanes();
  machine::meet(machine::myWarp(), "ballot", [lanes] {
    unsigned all = 0;
    for (int l = 0; l < 32; l++) all |= (unsigned)(*static_cast<const int *>(lanes[l].in[0]) != 0) << l;
    for (int l = 0; l < 32; l++) *static_cast<unsigned *>(lanes[l].out) = all;
  });
  return result;
}
inline void warpBarrier() { machine::meet(machine::myWarp(), "warp barrier", [] {}); }
inline void blockBarrier() { machine::meet(machine::block, "block barrier", [] {}); }

inline void waitForEarlierKernels() {}
inline void fence() {}
inline int addOne(int *counter) { return (*counter)++; }
inline float4 loadPastL1(const float4 *p) { return *p; }
inline float loadPastL1(const float *p) { return *p; }

} // namespace att
