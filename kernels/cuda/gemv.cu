// Products of one to four rows, bound by reading the weights once: dense, and the routed experts of a layer in two launches. bf16 in, f32 sums.
//
// gemv_dense: out[r, h, 0..n) (+)= x[r, h, :] . W[h]^T + bias; W bf16 [heads][n, k] row-major, out bf16 or f32.
// gemv_gate_up: inner[slot, i] = silu(x . gate row i) * (x . up row i) of expert ids[slot]; W [experts][2 * n, k], gate rows first.
// gemv_down: out[token, :] = sum over slots ascending of weight * (inner[slot, :] . W[expert]^T). A slot without an expert adds nothing.
// Needs k % 8 = 0 and 16-byte aligned rows. slot = token * top_k + choice.
//
// Algorithm: a warp takes two rows of W (the gate and the up row that belong together) over a share of k; its lanes have four loads of 16
// bytes of each row under way, so that an SM that holds 24 warps waits for 96 KiB. `split` warps share the k of a pair of rows where rows
// are few or long, and add their parts in a fixed order through shared memory. x is read where it lies; L1 serves all but the first warp.
// A block of gemv_down has all slots of a token, so that the weighted sum needs no launch of its own. The order of a sum depends on k
// and the split alone, so a row has the same bits in any company.
// Weights are asked for before the kernel waits for the one before it (programmatic dependent launch), since nothing writes them. The
// experts' second product needs the ids for that: they were written before the first product's own wait ended, and it allows the second to
// start only then.
//
// Versions and times: docs/performance-cuda.md. Tried and slower (H200, one row): sending the next layer's first weights to the L2 cache while
// the router chooses (a layer without attention 45.4 us against 43.7).
#include "elements.cuh"

namespace {

/// Warps of a block, elements of a chunk of k (8 a lane).
constexpr int WARPS = 4, CHUNK = 256;

/// Two rows of W over [from, to) of k, AHEAD chunks of each asked for before they are used.
template <int AHEAD = 4> struct Pair {
  const bf16 *first, *second;
  uint4 raw[AHEAD][2];
  int from, to;

  DEVICE void load(int j, int c) {
    raw[j][0] = raw[j][1] = make_uint4(0, 0, 0, 0);
    if (c < to) {
      raw[j][0] = ld_stream16(first + c);
      raw[j][1] = ld_stream16(second + c);
    }
  }

  /// The `part`th of `split` shares of rows of k elements; nothing where the rows are not `valid`.
  DEVICE void start(const bf16 *a, const bf16 *b, int k, int part, int split, bool valid) {
    const int share = ceil_div(ceil_div(k, CHUNK), split) * CHUNK;
    first = a, second = b;
    from = part * share;
    to = valid ? min2(from + share, k) : 0;
#pragma unroll
    for (int j = 0; j < AHEAD; j++) load(j, from + j * CHUNK + lane_id() * 8);
  }

  /// This lane's part of the products with R rows of x.
  template <int R> DEVICE void finish(float (&sum)[2][R], const bf16 *const (&x)[R]) {
    // Chunks of x in registers at a time.
    constexpr int GROUP = R <= 2 ? AHEAD : 2;
    for (int at = from + lane_id() * 8; at < to; at += AHEAD * CHUNK) {
#pragma unroll
      for (int g = 0; g < AHEAD; g += GROUP) {
        uint4 rows[GROUP][R];
#pragma unroll
        for (int j = 0; j < GROUP; j++)
#pragma unroll
          for (int r = 0; r < R; r++) {
            const int c = at + (g + j) * CHUNK;
            rows[j][r] = c < to ? *reinterpret_cast<const uint4 *>(x[r] + c) : make_uint4(0, 0, 0, 0);
          }
#pragma unroll
        for (int j = 0; j < GROUP; j++) {
          float a[8], b[8];
          unpack16(raw[g + j][0], a, first);
          unpack16(raw[g + j][1], b, first);
          load(g + j, at + (g + j + AHEAD) * CHUNK);
#pragma unroll
          for (int r = 0; r < R; r++) {
            float v[8];
            unpack16(rows[j][r], v, first);
#pragma unroll
            for (int i = 0; i < 8; i++) {
              sum[0][r] = fmaf(a[i], v[i], sum[0][r]);
              sum[1][r] = fmaf(b[i], v[i], sum[1][r]);
            }
          }
        }
      }
    }
#pragma unroll
    for (int i = 0; i < 2; i++)
#pragma unroll
      for (int r = 0; r < R; r++) sum[i][r] = warp_sum(sum[i][r]);
  }
};

// grid (ceil(n / 2 / (WARPS / split)), heads, ceil(rows / R)), 128 threads; split 1, 2 or 4.
template <int R, class Out>
DEVICE void dense(Out *out, const bf16 *x, const bf16 *w, const float *bias, int rows, int n, int k, int split, int accumulate,
                  i64 out_stride, i64 x_stride, i64 out_head_stride, i64 x_head_stride, i64 w_head_stride) {
  BLOCK_SHARED(float, parts, WARPS * 2 * R);
  allow_dependents();
  const int pairs = WARPS / split, head = blockIdx.y, first_row = blockIdx.z * R;
  const int column = (blockIdx.x * pairs + warp_id() / split) * 2;
  w += head * w_head_stride;
  Pair<> pair;
  pair.start(w + (i64)min2(column, n - 1) * k, w + (i64)min2(column + 1, n - 1) * k, k, warp_id() % split, split, column < n);
  // Always so; without a branch the assembler (CUDA 13.0) moves the wait before the loads, which then begin when it ends.
  if (split > 0) wait_for_predecessors();
  const bf16 *at[R];
#pragma unroll
  for (int r = 0; r < R; r++) at[r] = x + (i64)min2(first_row + r, rows - 1) * x_stride + head * x_head_stride;
  float sum[2][R] = {};
  pair.finish(sum, at);
  if (lane_id() == 0) {
#pragma unroll
    for (int i = 0; i < 2; i++)
#pragma unroll
      for (int r = 0; r < R; r++) parts[(warp_id() * 2 + i) * R + r] = sum[i][r];
  }
  __syncthreads();
  const int width = 2 * pairs, c = threadIdx.x % width, r = threadIdx.x / width, target = blockIdx.x * width + c;
  if (r >= R || first_row + r >= rows || target >= n) return;
  float y = 0.0f;
  for (int p = 0; p < split; p++) y += parts[((c / 2 * split + p) * 2 + c % 2) * R + r];
  if (bias) y += bias[target];
  Out *to = out + (i64)(first_row + r) * out_stride + head * out_head_stride + target;
  if (accumulate) y += ldF(to);
  stF(to, y);
}

/// The expert of a slot, or -1. Past L1, which need not know what was written since the kernel began.
DEVICE int expert_of(const int *ids, int experts) {
  const int e = *reinterpret_cast<const volatile int *>(ids);
  return e < experts ? e : -1;
}

} // namespace

#define DENSE(R, NAME, OUT, BLOCKS)                                                                                             \
  extern "C" __global__ void __launch_bounds__(WARPS * 32, BLOCKS)                                                              \
  gemv_dense_##R##_##NAME(OUT *out, const bf16 *x, const bf16 *w, const float *bias, int rows, int n, int k, int split,         \
                          int accumulate, i64 out_stride, i64 x_stride, i64 out_head_stride, i64 x_head_stride,                 \
                          i64 w_head_stride) {                                                                                  \
    dense<R, OUT>(out, x, w, bias, rows, n, k, split, accumulate, out_stride, x_stride, out_head_stride, x_head_stride,         \
                  w_head_stride);                                                                                               \
  }

DENSE(1, bf16, bf16, 8)
DENSE(1, f32, float, 8)
DENSE(2, bf16, bf16, 5)
DENSE(2, f32, float, 5)
DENSE(4, bf16, bf16, 3)
DENSE(4, f32, float, 3)

// grid (ceil(n / (WARPS / split)), slots), 128 threads. inner bf16 [slots, n].
extern "C" __global__ void __launch_bounds__(WARPS * 32, 7)
    gemv_gate_up(bf16 *inner, const bf16 *x, i64 x_stride, const int *ids, int ids_stride, int top_k, int experts, const bf16 *w,
                 i64 w_stride, int n, int k, int split, int *faults) {
  BLOCK_SHARED(float, parts, WARPS * 2);
  const int pairs = WARPS / split, slot = blockIdx.y, token = slot / top_k;
  const int column = blockIdx.x * pairs + warp_id() / split;
  wait_for_predecessors();
  allow_dependents();
  const int *id = ids + (i64)token * ids_stride + slot % top_k;
  const int e = expert_of(id, experts);
  if (e < 0) {
    if (*id >= experts && blockIdx.x == 0 && threadIdx.x == 0) el::fault(faults, el::FAULT_EXPERT, *id);
    return;
  }
  const bf16 *gate = w + e * w_stride + (i64)min2(column, n - 1) * k;
  Pair<> pair;
  pair.start(gate, gate + (i64)n * k, k, warp_id() % split, split, column < n);
  const bf16 *at[1] = {x + token * x_stride};
  float sum[2][1] = {};
  pair.finish(sum, at);
  if (lane_id() == 0) parts[warp_id() * 2] = sum[0][0], parts[warp_id() * 2 + 1] = sum[1][0];
  __syncthreads();
  const int target = blockIdx.x * pairs + threadIdx.x;
  if ((int)threadIdx.x >= pairs || target >= n) return;
  float g = 0.0f, up = 0.0f;
  for (int p = 0; p < split; p++) {
    g += parts[(threadIdx.x * split + p) * 2];
    up += parts[(threadIdx.x * split + p) * 2 + 1];
  }
  stF(inner + (i64)slot * n + target, g / (1.0f + expf(-g)) * up);
}

namespace {

constexpr int DOWN_WARPS = 8, MOST_SLOTS = 32;

// grid (ceil(n / 2), tokens), 256 threads; top_k <= 32.
template <class Out>
DEVICE void down(Out *out, i64 out_stride, const bf16 *inner, const int *ids, int ids_stride, const float *weights, int weights_stride,
                 int top_k, int experts, const bf16 *w, i64 w_stride, int n, int k) {
  BLOCK_SHARED(float, parts, MOST_SLOTS * 2);
  allow_dependents();
  const int token = blockIdx.y, column = blockIdx.x * 2;
  const i64 second = column + 1 < n ? k : 0;
  ids += (i64)token * ids_stride;
  bool waited = false;
  for (int choice = warp_id(); choice < top_k; choice += DOWN_WARPS) {
    const int e = expert_of(ids + choice, experts);
    const bf16 *row = w + (i64)max2(e, 0) * w_stride + (i64)column * k;
    Pair<3> pair; // rows of experts are short: 768 of k are three chunks
    pair.start(row, row + second, k, 0, 1, e >= 0);
    if (!waited) wait_for_predecessors();
    waited = true;
    const bf16 *at[1] = {inner + ((i64)token * top_k + choice) * k};
    float sum[2][1] = {};
    pair.finish(sum, at);
    const float weight = e >= 0 ? weights[(i64)token * weights_stride + choice] : 0.0f;
    if (lane_id() == 0) {
      parts[choice * 2] = e >= 0 ? weight * sum[0][0] : 0.0f;
      parts[choice * 2 + 1] = e >= 0 ? weight * sum[1][0] : 0.0f;
    }
  }
  if (!waited) wait_for_predecessors();
  __syncthreads();
  const int target = column + threadIdx.x;
  if (threadIdx.x >= 2 || target >= n) return;
  float y = 0.0f;
  for (int choice = 0; choice < top_k; choice++) y += parts[choice * 2 + threadIdx.x];
  stF(out + (i64)token * out_stride + target, y);
}

} // namespace

#define DOWN(NAME, OUT)                                                                                                         \
  extern "C" __global__ void __launch_bounds__(DOWN_WARPS * 32, 4)                                                              \
  gemv_down_##NAME(OUT *out, i64 out_stride, const bf16 *inner, const int *ids, int ids_stride, const float *weights,           \
                   int weights_stride, int top_k, int experts, const bf16 *w, i64 w_stride, int n, int k) {                     \
    down<OUT>(out, out_stride, inner, ids, ids_stride, weights, weights_stride, top_k, experts, w, w_stride, n, k);             \
  }

DOWN(bf16, bf16)
DOWN(f32, float)
