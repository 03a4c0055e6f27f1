// The functions of kernels/cuda/attention_wgmma.cuh in C++: a warpgroup meets, and operands are found through their descriptors.
#pragma once
#include "attention_primitives.cuh"

namespace att {

inline unsigned long long descriptor(unsigned address, unsigned leading, unsigned stride) {
  return (unsigned long long)(address >> 4 & 0x3fff) | (unsigned long long)(leading >> 4) << 16 |
         (unsigned long long)(stride >> 4) << 32 | 1ull << 62;
}

// Element (mn, k) of an operand that a descriptor points to.
inline float operandAt(unsigned long long d, bool contiguousK, int mn, int k) {
  if (d >> 62 != 1) machine::fail("a descriptor without 128-byte swizzle");
  const unsigned start = (unsigned)(d & 0x3fff) << 4, leading = (unsigned)(d >> 16 & 0x3fff) << 4, stride = (unsigned)(d >> 32 & 0x3fff) << 4;
  const unsigned plain = contiguousK ? start + mn / 8 * stride + mn % 8 * 128 + k * 2
                                     : start + mn / 64 * leading + mn % 64 * 2 + k / 8 * stride + k % 8 * 128;
  unsigned short bits;
  std::memcpy(&bits, machine::sharedAt(plain ^ ((plain >> 7 & 7) << 4), 2), 2);
  return widen(bits);
}

inline void showToMatrices() {}
inline void beginMatrices() { machine::meet(machine::myGroup(), "wgmma fence", [] {}); }
inline void endMatrices() { machine::meet(machine::myGroup(), "wgmma commit", [] {}); }
template <int N> inline void waitMatrices() { machine::meet(machine::myGroup(), "wgmma wait", [] {}); }

// a(row, k) of the warpgroup's 64 rows, b by descriptor.
template <class A> inline void groupProduct(machine::Lane *lanes, A a, unsigned long long b, bool contiguousK, bool add) {
  static float A_[64][16], B[128][16];
  for (int m = 0; m < 64; m++)
    for (int k = 0; k < 16; k++) A_[m][k] = a(m, k);
  for (int n = 0; n < 128; n++)
    for (int k = 0; k < 16; k++) B[n][k] = operandAt(b, contiguousK, n, k);
  for (int thread = 0; thread < 128; thread++) {
    float *d = static_cast<float *>(lanes[thread].out);
    const int warp = thread / 32, g = thread % 32 / 4, t = thread % 4;
    for (int j = 0; j < 16; j++)
      for (int c = 0; c < 4; c++) {
        const int m = warp * 16 + g + (c >> 1) * 8, n = j * 8 + 2 * t + (c & 1);
        double sum = add ? d[4 * j + c] : 0;
        for (int k = 0; k < 16; k++) sum += (double)A_[m][k] * B[n][k];
        d[4 * j + c] = (float)sum;
      }
  }
}

inline void multiplyGroup(float (&d)[64], unsigned long long a, unsigned long long b, int add) {
  machine::myLane().out = d;
  machine::Lane *lanes = machine::myGroupLanes();
  machine::meet(machine::myGroup(), "wgmma", [=] {
    groupProduct(lanes, [a](int m, int k) { return operandAt(a, true, m, k); }, b, true, add != 0);
  });
}

inline void multiplyGroupRegisters(float (&d)[64], const unsigned (&a)[4], unsigned long long b) {
  machine::myLane().in[0] = a;
  machine::myLane().out = d;
  machine::Lane *lanes = machine::myGroupLanes();
  machine::meet(machine::myGroup(), "wgmma of registers", [=] {
    auto fragment = [lanes](int m, int k) {
      const int row = m % 16, thread = m / 16 * 32 + row % 8 * 4 + k % 8 / 2;
      const unsigned word = static_cast<const unsigned *>(lanes[thread].in[0])[row / 8 + k / 8 * 2];
      return widen((unsigned short)(word >> (k % 2 * 16)));
    };
    groupProduct(lanes, fragment, b, false, true);
  });
}

} // namespace att
