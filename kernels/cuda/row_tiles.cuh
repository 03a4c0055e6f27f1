// How rows of a group are cut into tiles for grouped products: as few as may be, as even as 16s allow (the tensor cores' steps).
#pragma once
#include "common.cuh"

/// Rows of each tile but the last. `most`: a multiple of 16. The same rule in TypeScript: src/device/cuda/ops/grouped-gemm.ts.
DEVICE int rows_of_tile(int rows, int most) { return rows == 0 ? most : (ceil_div(rows, ceil_div(rows, most)) + 15) / 16 * 16; }
