// attention_plan: finds in a batch which rows stand alone (decode) and which follow one another in a sequence (prefill).
//
// rowSequence, positions: i32 [rows]. plan: i32 [4 + 3 * rows], see attention_batch.cuh. A tile is at most `tileRows`
// rows of one sequence at consecutive positions, cut where the row number is a multiple of tileRows too, so that no scan over a run is
// needed. Tiles of one row are single rows; so are rows of padding (a negative sequence or position).
// One block of 1024 threads; the order is that of the rows whatever the timing.
// Bound: latency; 16 turns of two block barriers for 16,384 rows.
#include "attention_primitives.cuh"

namespace {

struct Rows {
  const int *sequence, *position;
  int sequenceStride, positionStride, tileRows;

  // Whether row r begins a tile.
  ATT_DEVICE bool begins(int r) const {
    if (r % tileRows == 0) return true;
    const int s = sequence[(long long)r * sequenceStride], p = position[(long long)r * positionStride];
    const int s0 = sequence[(long long)(r - 1) * sequenceStride], p0 = position[(long long)(r - 1) * positionStride];
    return s != s0 || p != p0 + 1 || s < 0 || p0 < 0;
  }
};

} // namespace

extern "C" __global__ void __launch_bounds__(1024)
    attention_plan(int *plan, const int *rowSequence, const int *positions, int rows, int rowSequenceStride, int positionStride,
                   int tileRows) {
  __shared__ int sums[2][32];
  att::waitForEarlierKernels();
  const Rows batch = {rowSequence, positions, rowSequenceStride, positionStride, tileRows};
  const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
  int singles = 0, tiles = 0;
  for (int base = 0; base < rows; base += 1024) {
    const int r = base + (int)threadIdx.x;
    int length = 0;
    if (r < rows && batch.begins(r)) {
      length = 1;
      while (r + length < rows && !batch.begins(r + length)) length++;
    }
    const unsigned single = att::ballot(length == 1), tile = att::ballot(length > 1);
    if (lane == 0) {
      sums[0][warp] = __popc(single);
      sums[1][warp] = __popc(tile);
    }
    att::blockBarrier();
    int before[2] = {singles, tiles};
    for (int w = 0; w < 32; w++) {
      if (w < warp) {
        before[0] += sums[0][w];
        before[1] += sums[1][w];
      }
      singles += sums[0][w];
      tiles += sums[1][w];
    }
    const unsigned lower = (1u << lane) - 1u;
    if (length == 1) plan[4 + before[0] + __popc(single & lower)] = r;
    if (length > 1) {
      int *entry = plan + 4 + rows + 2 * (before[1] + __popc(tile & lower));
      entry[0] = r;
      entry[1] = length;
    }
    att::blockBarrier();
  }
  if (threadIdx.x == 0) {
    plan[0] = singles;
    plan[1] = tiles;
  }
}
