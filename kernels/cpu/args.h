// Argument blocks: the fixed arguments of a bound operation, filled once by bind.cpp and read by the kernels.
// Invariant: bind.cpp has checked every block against its spans, so a kernel that stays under the block's row limit and
// checks the indices it reads as data (slots, pages, ids) never touches memory outside a span. Plain data only.
#pragma once
#include <stddef.h>
#include <stdint.h>

namespace sy {

using i64 = int64_t;
using i32 = int32_t;
using u64 = uint64_t;
using u32 = uint32_t;
using u16 = uint16_t;
using u8 = uint8_t;

// What a kernel answers. Anything but OK becomes a JavaScript error.
enum Status : int { OK = 0, INDEX_OUT_OF_RANGE = 1 };

// Rows of 4-byte elements: row r starts at p + r * stride. `capacity` rows lie wholly inside the span.
struct Rows {
  float *p;
  i64 stride;
  i64 capacity;
  float *row(i64 r) const { return p + r * stride; }
};

// The same for i32 elements.
struct Index {
  const i32 *p;
  i64 stride;
  i64 capacity;
  i32 at(i64 r) const { return p[r * stride]; }
};

enum Kind : int { F32 = 0, BF16 = 1 };

// `count` packed matrices [n, k]: panels of 16 output rows, f32 [k][16] or bf16 [ceil(k/2)][16][2]. No array of its own.
struct Matrix {
  const char *p;
  i64 n, k, count, stride; // stride in bytes between matrices
  i64 panel;               // bytes of one panel
  int kind;
  const char *at(i64 i) const { return p + i * stride; }
};

inline i64 panelBytes(int kind, i64 k) { return kind == F32 ? k * 64 : (k + 1) / 2 * 64; }

// One matrix product on rows that may be reached through indices. Used by linear, headLinear and experts.
struct LinearJob {
  const char *w;
  i64 n, k, panel;
  int kind;
  const float *x;
  i64 xStride;
  const i32 *xIndex; // row of x for each row, or null
  float *y;
  i64 yStride;
  const i32 *yIndex; // row of y for each row, or null
  i64 rows;
  const float *bias; // [n] or null
  bool accumulate;
};

struct EmbedArgs { Rows out; Index ids; Matrix table; };
struct RmsNormArgs { Rows out, x; const float *weight; i64 width, groups; double eps; };
struct AddRmsNormArgs { Rows out, residual, x; const float *weight; i64 width; double eps; };
// x[m] holds rows of member m; `first` says, when it runs, which of them belongs to row 0. A list, and a row of each.
struct SumAddRmsNormArgs { Rows out, residual; const Rows *x; const float **row; i64 members, capacity; Index first; const float *weight; i64 width; double eps; };
struct AddArgs { Rows out, a, b; i64 width; };
struct CopyArgs { Rows out, x; i64 width; };
struct GatherArgs { Rows out, x; Index index; i64 width; };
struct LinearArgs { Rows out, x; Matrix weight; const float *bias; bool accumulate; };
struct HeadLinearArgs { Rows out, x; i64 outHeadStride, xHeadStride; Matrix weight; };
struct RopeArgs {
  Rows out, x;
  i64 outHeadStride, xHeadStride, heads, width;
  Index positions;
  const float *cosSin; // [cosRows, width]
  i64 cosRows;
  bool interleaved;
  float *scratch; // [width]
};
struct StoreKvArgs { Rows kv, x; Index slots; i64 width; };

// KV positions in a block of the online softmax: fixed, so that a row's sums never depend on chunking or paging.
enum { KV_BLOCK = 64 };

struct AttentionArgs {
  Rows out, q, kv; // kv.capacity counts slots
  Index rowSequence, positions;
  const i32 *pageTable;
  i64 pageTableStride, pageTableLength; // elements
  i64 pageSize;
  i64 heads, kvHeads, qkWidth, vWidth, keyOffset, valueOffset; // offsets in elements from the start of a slot
  float scale;
  i64 window; // 0: none
  const float *sinks;
  i64 tileRows;  // rows of one sequence taken together
  float *acc;    // [tileRows, heads, vWidth]
  float *scores; // [tileRows * group, KV_BLOCK]
  float *top;    // [tileRows, heads] running maximum
  float *sum;    // [tileRows, heads] running sum
  float *factor; // [tileRows * group]
};

enum Scoring : int { SOFTMAX = 0, SIGMOID = 1, SOFTMAX_AFTER_TOPK = 2 };

struct RouterArgs {
  Rows weights, logits;
  i32 *ids;
  i64 idsStride;
  const float *bias;
  i64 experts, topK, groups, topGroups;
  int scoring;
  bool groupTop2, normalize;
  float scale;
  float *scratch; // [2 * padded experts + groups]
};

enum ActivationKind : int { SILU = 0, SWIGLU_CLAMPED = 1 };

struct Activation { int kind; float limit, alpha; };

struct GatedArgs { Rows out, x; i64 width; Activation activation; };
struct SigmoidScaleArgs { Rows out, x, gate; i64 width; bool accumulate; };

struct ExpertsArgs {
  Rows out, x, weights;
  Index ids;
  i64 topK, inter, hidden;
  Matrix gateUp, down;
  const float *gateUpBias, *downBias;
  Activation activation;
  float *scratch;
  i64 *starts; // [experts + 1]
};

struct SampleArgs {
  i32 *out;
  i64 outStride;
  Rows logits, params;
  i64 vocab;
  Rows logprob; // p null: not wanted
  double *scaled; // [vocab]
  i32 *order;     // [vocab]
};

enum Dtype : int { SRC_F32 = 0, SRC_F16 = 1, SRC_BF16 = 2, SRC_F8_E4M3 = 3 };

// Where packed numbers come from: element (n, k) is source[offset + n * strideN + k * strideK].
struct PackSource {
  int dtype;
  const u8 *bytes;
  i64 offset, strideN, strideK;
  const float *scales; // null: none
  i64 blockRows, blockCols, scaleColumns, sourceColumns;
};
struct PackMatrixArgs { char *target; int kind; i64 k, panel, rowStart, n; PackSource source; };
struct PackVectorArgs { float *target; i64 length; PackSource source; };

enum Op : int {
  OP_EMBED, OP_RMS_NORM, OP_ADD_RMS_NORM, OP_ADD, OP_COPY, OP_GATHER_ROWS, OP_LINEAR, OP_HEAD_LINEAR, OP_ROPE,
  OP_STORE_KV, OP_ATTENTION, OP_ROUTER, OP_GATED_ACTIVATION, OP_SIGMOID_SCALE, OP_EXPERTS, OP_SAMPLE,
  OP_SUM_ADD_RMS_NORM, OP_COUNT
};

using Run = int (*)(const void *args, i64 rows);

// One instruction set's kernels. Constant data: shared by every thread of the process.
struct KernelTable {
  const char *isa;
  Run run[OP_COUNT];
  void (*packMatrix)(const PackMatrixArgs &);
  void (*packVector)(const PackVectorArgs &);
  double (*readSum)(const char *p, i64 bytes);  // reads every byte once
  double (*multiplyAdds)(i64 steps, i64 *done); // runs `steps` rounds; *done = floating-point operations carried out
};

} // namespace sy
