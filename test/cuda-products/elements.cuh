// The fault words of kernels/cuda/elements.cuh on the emulated machine: counted.
#pragma once
#include "common.cuh"

inline int faultsSeen = 0;
namespace el {
enum Fault { FAULT_EXPERT = 5 };
inline void fault(int *, int, int) { faultsSeen++; }
} // namespace el
