// From a flat list of numbers to checked argument blocks.
// Invariant: an operand that is accepted lies inside its span for every row below the bound kernel's row limit.
// The order of numbers is that of src/device/cpu/native-ops.ts; keep the two side by side.
#include "bind.h"
#include <stdlib.h>
#include <string.h>

namespace sy {

void Reader::need(bool condition, const char *what) {
  if (!condition && !error) error = what;
}

double Reader::number() {
  if (at >= length) {
    need(false, "too few arguments");
    return 0;
  }
  return d[at++];
}

i64 Reader::integer() {
  double v = number();
  need(v >= -9007199254740991.0 && v <= 9007199254740991.0, "an integer argument is not a number");
  return error ? 0 : (i64)v;
}

Rows Reader::rows(i64 width, bool limits) {
  i64 address = integer(), elements = integer() / 4, offset = integer(), stride = integer();
  need(address != 0 && offset >= 0 && stride >= 0 && width >= 0, "an operand has a negative offset or stride");
  need(offset + width <= elements, "an operand's first row lies outside its span");
  i64 capacity = error ? 0 : stride == 0 ? INT64_MAX : (elements - offset - width) / stride + 1;
  if (limits && capacity < maxRows) maxRows = capacity;
  return {(float *)(uintptr_t)address + offset, stride, capacity};
}

Index Reader::index(i64 width, bool limits) {
  Rows r = rows(width, limits);
  return {(const i32 *)r.p, r.stride, r.capacity};
}

Matrix Reader::matrix() {
  i64 address = integer(), bytes = integer();
  Matrix m;
  m.kind = (int)integer();
  m.n = integer();
  m.k = integer();
  m.count = integer();
  m.stride = integer();
  m.p = (const char *)(uintptr_t)address;
  need(m.kind == F32 || m.kind == BF16, "a matrix of unknown kind");
  need(m.n > 0 && m.k > 0 && m.count > 0, "a matrix without rows, columns or members");
  m.panel = panelBytes(m.kind, m.k);
  i64 one = (m.n + 15) / 16 * m.panel;
  need(m.count == 1 || m.stride >= one, "matrices overlap: strideBytes is less than one packed matrix");
  need((m.count - 1) * m.stride + one <= bytes, "a packed matrix is longer than its span");
  return m;
}

const float *Reader::vector(i64 least) {
  i64 address = integer(), bytes = integer(), count = integer();
  if (count == 0) return nullptr;
  need(count >= least && count * 4 <= bytes, "a parameter vector is too short");
  return (const float *)(uintptr_t)address;
}

namespace {

enum { MAX_SUMMED = 4096 };

Activation activation(Reader &r) {
  Activation a;
  a.kind = (int)r.integer();
  a.limit = (float)r.number();
  a.alpha = (float)r.number();
  return a;
}

void *scratch(Reader &r, i64 bytes) {
  void *p = nullptr;
  if (!r.error && posix_memalign(&p, 64, (size_t)(bytes > 0 ? (bytes + 63) / 64 * 64 : 64)) != 0) p = nullptr;
  r.need(p != nullptr, "no memory for the working space of a kernel");
  if (p) memset(p, 0, (size_t)bytes);
  return p;
}

void read(Reader &r, Bound &, EmbedArgs &a) {
  a.table = r.matrix();
  a.out = r.rows(a.table.k);
  a.ids = r.index();
}

void read(Reader &r, Bound &, RmsNormArgs &a) {
  a.width = r.integer();
  a.groups = r.integer();
  a.eps = r.number();
  r.need(a.width > 0 && a.groups > 0, "a norm without width");
  a.weight = r.vector(a.width);
  r.need(a.weight, "a norm without weights");
  a.out = r.rows(a.width * a.groups);
  a.x = r.rows(a.width * a.groups);
}

void read(Reader &r, Bound &, AddRmsNormArgs &a) {
  a.width = r.integer();
  a.eps = r.number();
  a.weight = r.vector(a.width);
  r.need(a.weight, "a norm without weights");
  a.out = r.rows(a.width);
  a.residual = r.rows(a.width);
  a.x = r.rows(a.width);
}

// What a sum's argument block has behind it: the members' rows, and an address of each. Not working space, which kernels share.
size_t summedBytes(const Reader &r) {
  double members = r.length > 2 ? r.d[2] : 0;
  return members >= 1 && members <= MAX_SUMMED ? (size_t)members * (sizeof(Rows) + sizeof(float *)) : 0;
}

void read(Reader &r, Bound &, SumAddRmsNormArgs &a) {
  a.width = r.integer();
  a.eps = r.number();
  a.members = r.integer();
  r.need(a.members > 0 && a.members <= MAX_SUMMED, "a sum over no members, or over too many");
  a.weight = r.vector(a.width);
  r.need(a.weight, "a norm without weights");
  a.out = r.rows(a.width);
  a.residual = r.rows(a.width);
  a.first = r.index(1, false);
  if (r.error) return;
  Rows *x = (Rows *)(&a + 1);
  a.x = x;
  a.row = (const float **)(x + a.members);
  a.capacity = INT64_MAX;
  for (i64 m = 0; m < a.members; m++) {
    x[m] = r.rows(a.width, false);
    if (x[m].capacity < a.capacity) a.capacity = x[m].capacity;
  }
}

void read(Reader &r, Bound &, AddArgs &a) {
  a.width = r.integer();
  a.out = r.rows(a.width);
  a.a = r.rows(a.width);
  a.b = r.rows(a.width);
}

void read(Reader &r, Bound &, CopyArgs &a) {
  a.width = r.integer();
  a.out = r.rows(a.width);
  a.x = r.rows(a.width);
}

void read(Reader &r, Bound &, GatherArgs &a) {
  a.width = r.integer();
  a.out = r.rows(a.width);
  a.x = r.rows(a.width, false);
  a.index = r.index();
}

void read(Reader &r, Bound &, LinearArgs &a) {
  a.weight = r.matrix();
  a.accumulate = r.integer() != 0;
  a.bias = r.vector(a.weight.n);
  a.out = r.rows(a.weight.n);
  a.x = r.rows(a.weight.k);
}

void read(Reader &r, Bound &, HeadLinearArgs &a) {
  a.weight = r.matrix();
  a.outHeadStride = r.integer();
  a.xHeadStride = r.integer();
  r.need(a.outHeadStride >= 0 && a.xHeadStride >= 0, "a negative head stride");
  a.out = r.rows((a.weight.count - 1) * a.outHeadStride + a.weight.n);
  a.x = r.rows((a.weight.count - 1) * a.xHeadStride + a.weight.k);
}

void read(Reader &r, Bound &b, RopeArgs &a) {
  a.heads = r.integer();
  a.width = r.integer();
  a.outHeadStride = r.integer();
  a.xHeadStride = r.integer();
  a.interleaved = r.integer() != 0;
  r.need(a.heads > 0 && a.width > 0 && a.width % 2 == 0, "rope needs heads and an even width");
  i64 address = r.integer(), bytes = r.integer();
  a.cosSin = (const float *)(uintptr_t)address;
  a.cosRows = r.error ? 0 : bytes / 4 / a.width;
  a.out = r.rows((a.heads - 1) * a.outHeadStride + a.width);
  a.x = r.rows((a.heads - 1) * a.xHeadStride + a.width);
  a.positions = r.index();
  b.scratch = scratch(r, a.width * 4);
  a.scratch = (float *)b.scratch;
}

void read(Reader &r, Bound &, StoreKvArgs &a) {
  a.width = r.integer();
  a.kv = r.rows(a.width, false);
  a.x = r.rows(a.width);
  a.slots = r.index();
}

void read(Reader &r, Bound &b, AttentionArgs &a) {
  a.heads = r.integer();
  a.kvHeads = r.integer();
  a.qkWidth = r.integer();
  a.vWidth = r.integer();
  a.keyOffset = r.integer();
  a.valueOffset = r.integer();
  a.scale = (float)r.number();
  a.window = r.integer();
  a.pageSize = r.integer();
  r.need(a.heads > 0 && a.kvHeads > 0 && a.kvHeads <= a.heads && a.qkWidth > 0 && a.vWidth > 0, "attention without heads or width");
  r.need(a.keyOffset >= 0 && a.valueOffset >= 0 && a.window >= 0 && a.pageSize > 0, "attention with a negative offset, window or page size");
  if (r.error) return;
  a.sinks = r.vector(a.heads);
  a.out = r.rows(a.heads * a.vWidth);
  a.q = r.rows(a.heads * a.qkWidth);
  i64 key = a.keyOffset + a.kvHeads * a.qkWidth, value = a.valueOffset + a.kvHeads * a.vWidth;
  a.kv = r.rows(key > value ? key : value, false);
  a.rowSequence = r.index();
  a.positions = r.index();
  i64 tableElements = r.at + 3 < r.length ? (i64)(r.d[r.at + 1] / 4 - r.d[r.at + 2]) : 0;
  Rows table = r.rows(1, false);
  a.pageTable = (const i32 *)table.p;
  a.pageTableStride = table.stride;
  a.pageTableLength = tableElements;
  i64 group = (a.heads + a.kvHeads - 1) / a.kvHeads;
  a.tileRows = group >= 16 ? 1 : 16 / group; // some 16 queries a KV head share what they read
  i64 queries = a.tileRows * a.heads, acc = (queries * a.vWidth + 15) / 16 * 16, state = (queries + 15) / 16 * 16;
  // A head group is taken at most 64 queries at a time (attention.cpp).
  b.scratch = scratch(r, 4 * (acc + 2 * state + 64 + 64 * (KV_BLOCK + 8)));
  a.acc = (float *)b.scratch;
  a.top = a.acc + acc;
  a.sum = a.top + state;
  a.factor = a.sum + state;
  a.scores = a.factor + 64;
}

void read(Reader &r, Bound &b, RouterArgs &a) {
  a.experts = r.integer();
  a.topK = r.integer();
  a.scoring = (int)r.integer();
  a.groups = r.integer();
  a.topGroups = r.integer();
  a.groupTop2 = r.integer() != 0;
  a.normalize = r.integer() != 0;
  a.scale = (float)r.number();
  r.need(a.experts > 0 && a.topK > 0 && a.topK <= a.experts, "router: topK must be between 1 and the number of experts");
  r.need(a.groups >= 1 && a.topGroups >= 1 && a.topGroups <= a.groups && (a.groups <= 1 || a.experts % a.groups == 0), "router: experts must divide into the groups");
  if (r.error) return;
  a.bias = r.vector(a.experts);
  Rows ids = r.rows(a.topK);
  a.ids = (i32 *)ids.p;
  a.idsStride = ids.stride;
  a.weights = r.rows(a.topK);
  a.logits = r.rows(a.experts);
  b.scratch = scratch(r, 4 * (2 * ((a.experts + 15) / 16 * 16) + a.groups));
  a.scratch = (float *)b.scratch;
}

void read(Reader &r, Bound &, GatedArgs &a) {
  a.width = r.integer();
  a.activation = activation(r);
  a.out = r.rows(a.width);
  a.x = r.rows(2 * a.width);
}

void read(Reader &r, Bound &, SigmoidScaleArgs &a) {
  a.width = r.integer();
  a.accumulate = r.integer() != 0;
  a.out = r.rows(a.width);
  a.x = r.rows(a.width);
  a.gate = r.rows(1);
}

void read(Reader &r, Bound &b, ExpertsArgs &a) {
  a.topK = r.integer();
  a.activation = activation(r);
  a.gateUp = r.matrix();
  a.down = r.matrix();
  a.hidden = a.gateUp.k;
  a.inter = a.down.k;
  r.need(a.topK > 0, "experts: topK must be positive");
  r.need(a.gateUp.n == 2 * a.inter && a.down.n == a.hidden && a.gateUp.count == a.down.count, "experts: gate-up and down matrices do not fit each other");
  r.need(a.inter >= 2, "experts: an intermediate width below 2");
  if (r.error) return;
  a.gateUpBias = r.vector(2 * a.inter * a.gateUp.count);
  a.downBias = r.vector(a.hidden * a.down.count);
  a.out = r.rows(a.hidden);
  a.x = r.rows(a.hidden);
  a.ids = r.index(a.topK);
  a.weights = r.rows(a.topK);
  i64 address = r.integer(), elements = r.integer() / 4, offset = r.integer();
  r.integer(); // stride of the scratch: ignored
  r.need(offset >= 0 && offset <= elements, "experts: scratch outside its span");
  if (r.error) return;
  a.scratch = (float *)(uintptr_t)address + offset;
  i64 perRow = a.topK * (3 * a.inter + a.hidden), fit = (elements - offset) / perRow;
  if (fit < r.maxRows) r.maxRows = fit;
  b.scratch = scratch(r, 8 * (a.gateUp.count + 1));
  a.starts = (i64 *)b.scratch;
}

void read(Reader &r, Bound &b, SampleArgs &a) {
  a.vocab = r.integer();
  r.need(a.vocab > 0, "sample: an empty vocabulary");
  if (r.error) return;
  Rows out = r.rows(1);
  a.out = (i32 *)out.p;
  a.outStride = out.stride;
  a.logits = r.rows(a.vocab);
  a.params = r.rows(8);
  if (r.integer()) a.logprob = r.rows(1);
  b.scratch = scratch(r, a.vocab * (8 + 4));
  a.scaled = (double *)b.scratch;
  a.order = (i32 *)(a.scaled + a.vocab);
}

template <class A> bool make(Reader &r, Bound &b, size_t behind = 0) {
  A *a = (A *)calloc(1, sizeof(A) + behind);
  b.args = a;
  r.need(a != nullptr, "no memory for an argument block");
  if (a) read(r, b, *a);
  r.need(r.at == r.length, "too many arguments");
  b.maxRows = r.maxRows;
  if (!r.error) return true;
  free(b.scratch);
  free(b.args);
  return false;
}

} // namespace

bool bind(const KernelTable &table, int op, Reader &r, Bound &b) {
  b = {table.run[op], 0, nullptr, nullptr};
  switch (op) {
    case OP_EMBED: return make<EmbedArgs>(r, b);
    case OP_RMS_NORM: return make<RmsNormArgs>(r, b);
    case OP_ADD_RMS_NORM: return make<AddRmsNormArgs>(r, b);
    case OP_ADD: return make<AddArgs>(r, b);
    case OP_COPY: return make<CopyArgs>(r, b);
    case OP_GATHER_ROWS: return make<GatherArgs>(r, b);
    case OP_LINEAR: return make<LinearArgs>(r, b);
    case OP_HEAD_LINEAR: return make<HeadLinearArgs>(r, b);
    case OP_ROPE: return make<RopeArgs>(r, b);
    case OP_STORE_KV: return make<StoreKvArgs>(r, b);
    case OP_ATTENTION: return make<AttentionArgs>(r, b);
    case OP_ROUTER: return make<RouterArgs>(r, b);
    case OP_GATED_ACTIVATION: return make<GatedArgs>(r, b);
    case OP_SIGMOID_SCALE: return make<SigmoidScaleArgs>(r, b);
    case OP_EXPERTS: return make<ExpertsArgs>(r, b);
    case OP_SUM_ADD_RMS_NORM: return make<SumAddRmsNormArgs>(r, b, summedBytes(r));
    default: return make<SampleArgs>(r, b);
  }
}

} // namespace sy
