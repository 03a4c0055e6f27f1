// kernels/cuda/wgmma.cuh on the emulated machine: a warpgroup meets and multiplies what two descriptors name.
#pragma once
#include "common.cuh"

struct WarpgroupLane {
  float *d;
  u64 a, b;
  int accumulate;
};
inline std::map<int, machine::Meeting> warpgroups;
inline std::map<int, WarpgroupLane> warpgroupLanes;

inline float swizzledElement(u64 descriptor, int row, int k) {
  const u32 start = (u32)(descriptor & 0x3fff) << 4, groups = (u32)(descriptor >> 32 & 0x3fff) << 4;
  const u32 plain = start + row / 8 * groups + row % 8 * 128 + k * 2;
  u16 bits;
  std::memcpy(&bits, machine::sharedAt(plain ^ ((plain >> 7 & 7) << 4), 2), 2);
  return to_float(bf16{bits});
}

inline void multiply64(int columns, float *d, u64 a, u64 b, int accumulate) {
  const int number = machine::current->number, group = number / 128;
  warpgroupLanes[number] = {d, a, b, accumulate};
  machine::Meeting &meeting = warpgroups[group];
  meeting.size = 128;
  machine::meet(meeting, "wgmma", [group, columns] {
    static float A[64][16], B[256][16];
    const WarpgroupLane &first = warpgroupLanes[group * 128];
    for (int k = 0; k < 16; k++) {
      for (int r = 0; r < 64; r++) A[r][k] = swizzledElement(first.a, r, k);
      for (int r = 0; r < columns; r++) B[r][k] = swizzledElement(first.b, r, k);
    }
    for (int t = 0; t < 128; t++) {
      const WarpgroupLane &lane = warpgroupLanes[group * 128 + t];
      if (lane.a != first.a || lane.b != first.b) machine::fail("lanes of a warpgroup name different matrices");
      for (int e = 0; e < columns / 2; e++) {
        const int row = t / 32 * 16 + t % 32 / 4 + (e >> 1 & 1) * 8, column = e / 4 * 8 + 2 * (t % 4) + (e & 1);
        float sum = lane.accumulate ? lane.d[e] : 0.0f;
        for (int k = 0; k < 16; k++) sum += A[row][k] * B[column][k];
        lane.d[e] = sum;
      }
    }
  });
}
template <int N> struct Columns {};
template <int N> void wgmma_columns(Columns<N>, float *d, u64 a, u64 b, int accumulate) { multiply64(N, d, a, b, accumulate); }
