// kernels/cuda/wgmma_columns.cuh on the emulated machine.
#pragma once
#include "wgmma.cuh"

template <int N> struct Columns {};
template <int N> void wgmma_columns(Columns<N>, float *d, u64 a, u64 b, int accumulate) { multiply64(N, d, a, b, accumulate); }
