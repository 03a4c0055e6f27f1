// The N-API module: which instruction sets run here, binding and running of kernels, packing.
// Invariant: no mutable globals; a bound kernel is owned by its JavaScript function. Node-API 8, so one binary serves
// Node 20, 22 and 24.
#include "addon.h"
#include <stdio.h>
#include <stdlib.h>

namespace sy {

#define SY_DECLARE(isa) extern const KernelTable table_##isa;
#if defined(__x86_64__)
SY_DECLARE(baseline)
SY_DECLARE(avx2)
SY_DECLARE(avx512)
enum { TABLES = 3 };
const KernelTable *tableAt(int i) {
  __builtin_cpu_init();
  if (i == 0) return &table_baseline;
  if (i == 1) return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2") ? &table_avx2 : nullptr;
  if (i == 2)
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
                   __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512cd") && tableAt(1)
               ? &table_avx512
               : nullptr;
  return nullptr;
}
#else
SY_DECLARE(neon)
enum { TABLES = 1 };
const KernelTable *tableAt(int i) { return i == 0 ? &table_neon : nullptr; }
#endif

namespace {

void fail(napi_env env, const char *message) { napi_throw_error(env, nullptr, message); }

double doubleOf(napi_env env, napi_value v) {
  double d = 0;
  napi_get_value_double(env, v, &d);
  return d;
}

// isas(): names of the instruction sets this processor runs, worst first.
napi_value isas(napi_env env, napi_callback_info) {
  napi_value list, name;
  napi_create_array(env, &list);
  u32 n = 0;
  for (int i = 0; i < TABLES; i++)
    if (const KernelTable *t = tableAt(i)) {
      napi_create_string_utf8(env, t->isa, NAPI_AUTO_LENGTH, &name);
      napi_set_element(env, list, n++, name);
    }
  return list;
}

// The n-th instruction set of `isas()`.
const KernelTable *tableOf(napi_env env, napi_value v) {
  i32 wanted = 0;
  napi_get_value_int32(env, v, &wanted);
  for (int i = 0; i < TABLES; i++)
    if (tableAt(i) && wanted-- == 0) return tableAt(i);
  return nullptr;
}

bool numbers(napi_env env, napi_value v, const double **d, size_t *n) {
  napi_typedarray_type type;
  void *data = nullptr;
  napi_value buffer;
  size_t offset;
  if (napi_get_typedarray_info(env, v, &type, n, &data, &buffer, &offset) != napi_ok || type != napi_float64_array) return false;
  *d = (const double *)data;
  return true;
}

// kernel(rows): what a bound kernel is for JavaScript.
napi_value runKernel(napi_env env, napi_callback_info info) {
  size_t n = 1;
  napi_value argument[1];
  void *data = nullptr;
  napi_get_cb_info(env, info, &n, argument, nullptr, &data);
  const Bound &b = *(const Bound *)data;
  i64 rows = 0;
  if (n < 1 || napi_get_value_int64(env, argument[0], &rows) != napi_ok || rows < 0) {
    fail(env, "the number of rows must be an integer from 0 up");
    return nullptr;
  }
  if (rows == 0) return nullptr;
  if (rows > b.maxRows) {
    char message[120];
    snprintf(message, sizeof message, "%lld rows, but the operands' spans hold %lld", (long long)rows, (long long)b.maxRows);
    fail(env, message);
    return nullptr;
  }
  if (b.run(b.args, rows) != OK) fail(env, "an index read by a kernel (expert, slot, page, position or row) lies outside its table");
  return nullptr;
}

void freeBound(napi_env, void *data, void *) {
  Bound *b = (Bound *)data;
  free(b->scratch);
  free(b->args);
  free(b);
}

// bind(isa, op, Float64Array): the kernel as a function of the number of rows.
napi_value bindKernel(napi_env env, napi_callback_info info) {
  size_t n = 3;
  napi_value argument[3], kernel;
  napi_get_cb_info(env, info, &n, argument, nullptr, nullptr);
  const KernelTable *table = n == 3 ? tableOf(env, argument[0]) : nullptr;
  Reader r = {nullptr, 0, 0, INT64_MAX, nullptr};
  double op = n == 3 ? doubleOf(env, argument[1]) : -1;
  if (!table || !(op >= 0 && op < OP_COUNT) || !numbers(env, argument[2], &r.d, &r.length)) {
    fail(env, "bind(isa, op, Float64Array): wrong arguments");
    return nullptr;
  }
  Bound *b = (Bound *)calloc(1, sizeof(Bound));
  if (!b || !bind(*table, (int)op, r, *b)) {
    free(b);
    fail(env, r.error ? r.error : "no memory");
    return nullptr;
  }
  if (napi_create_function(env, "kernel", NAPI_AUTO_LENGTH, runKernel, b, &kernel) != napi_ok ||
      napi_add_finalizer(env, kernel, b, freeBound, nullptr, nullptr) != napi_ok) {
    freeBound(env, b, nullptr);
    fail(env, "the kernel could not be made a function");
    return nullptr;
  }
  return kernel;
}

// The source of packing: numbers [dtype, offset, strideN, strideK, hasScales, blockRows, blockCols, scaleColumns,
// sourceColumns], the bytes, the scales. Checks that elements [0, n) x [0, k) lie inside both.
bool packSource(napi_env env, Reader &r, napi_value bytes, napi_value scales, i64 n, i64 k, PackSource &s) {
  s.dtype = (int)r.integer();
  s.offset = r.integer();
  s.strideN = r.integer();
  s.strideK = r.integer();
  bool scaled = r.integer() != 0;
  s.blockRows = r.integer();
  s.blockCols = r.integer();
  s.scaleColumns = r.integer();
  s.sourceColumns = r.integer();
  napi_typedarray_type type;
  size_t length = 0, at;
  void *data = nullptr;
  napi_value buffer;
  r.need(napi_get_typedarray_info(env, bytes, &type, &length, &data, &buffer, &at) == napi_ok && type == napi_uint8_array, "packing reads a Uint8Array");
  s.bytes = (const u8 *)data;
  r.need(s.dtype >= SRC_F32 && s.dtype <= SRC_F8_E4M3, "unknown source dtype");
  i64 size = s.dtype == SRC_F32 ? 4 : s.dtype == SRC_F8_E4M3 ? 1 : 2;
  r.need(s.offset >= 0 && s.strideN >= 0 && s.strideK >= 0, "a packing source with a negative offset or stride");
  i64 last = s.offset + (n - 1) * s.strideN + (k - 1) * s.strideK;
  r.need((last + 1) * size <= (i64)length, "a packing source reaches beyond its tensor");
  s.scales = nullptr;
  if (scaled && !r.error) {
    data = nullptr;
    length = 0;
    r.need(napi_get_typedarray_info(env, scales, &type, &length, &data, &buffer, &at) == napi_ok && type == napi_float32_array, "scales must be a Float32Array");
    r.need(s.blockRows > 0 && s.blockCols > 0 && s.scaleColumns > 0 && s.sourceColumns > 0, "scales without a block shape");
    r.need(r.error || (s.sourceColumns - 1) / s.blockCols < s.scaleColumns, "too few columns of scales");
    r.need(r.error || (last / s.sourceColumns / s.blockRows + 1) * s.scaleColumns <= (i64)length, "too few scales");
    s.scales = (const float *)data;
  }
  return !r.error;
}

// packMatrix(isa, numbers, bytes, scales): numbers = matrix, index, rowStart, n, then the source's.
napi_value packMatrix(napi_env env, napi_callback_info info) {
  size_t n = 4;
  napi_value a[4];
  napi_get_cb_info(env, info, &n, a, nullptr, nullptr);
  const KernelTable *table = tableOf(env, a[0]);
  Reader r = {nullptr, 0, 0, INT64_MAX, nullptr};
  r.need(table && numbers(env, a[1], &r.d, &r.length), "packMatrix: wrong arguments");
  Matrix m = r.matrix();
  i64 index = r.integer();
  PackMatrixArgs p;
  p.rowStart = r.integer();
  p.n = r.integer();
  p.kind = m.kind;
  p.k = m.k;
  p.panel = m.panel;
  r.need(index >= 0 && index < m.count && p.rowStart >= 0 && p.n >= 0 && p.rowStart + p.n <= m.n, "packing outside the matrix");
  if (r.error || p.n == 0) {
    if (r.error) fail(env, r.error);
    return nullptr;
  }
  p.target = const_cast<char *>(m.at(index));
  if (packSource(env, r, a[2], a[3], p.n, p.k, p.source)) table->packMatrix(p);
  else fail(env, r.error);
  return nullptr;
}

// packVector(isa, numbers, bytes, scales): numbers = target address, bytes, offset, length, then the source's.
napi_value packVector(napi_env env, napi_callback_info info) {
  size_t n = 4;
  napi_value a[4];
  napi_get_cb_info(env, info, &n, a, nullptr, nullptr);
  const KernelTable *table = tableOf(env, a[0]);
  Reader r = {nullptr, 0, 0, INT64_MAX, nullptr};
  r.need(table && numbers(env, a[1], &r.d, &r.length), "packVector: wrong arguments");
  i64 address = r.integer(), bytes = r.integer(), offset = r.integer();
  PackVectorArgs p;
  p.length = r.integer();
  r.need(address != 0 && offset >= 0 && p.length >= 0 && (offset + p.length) * 4 <= bytes, "packing outside the vector");
  if (r.error || p.length == 0) {
    if (r.error) fail(env, r.error);
    return nullptr;
  }
  p.target = (float *)(uintptr_t)address + offset;
  if (packSource(env, r, a[2], a[3], p.length, 1, p.source)) table->packVector(p);
  else fail(env, r.error);
  return nullptr;
}

} // namespace
} // namespace sy

NAPI_MODULE_INIT() {
  const struct { const char *name; napi_callback f; } functions[] = {
      {"isas", sy::isas}, {"bind", sy::bindKernel}, {"packMatrix", sy::packMatrix}, {"packVector", sy::packVector},
      {"addressOf", sy::addressOf}, {"mapFile", sy::mapFile}, {"adviseHugePages", sy::adviseHugePages},
      {"readBandwidth", sy::readBandwidth}, {"multiplyAddRate", sy::multiplyAddRate},
      {"wireTransfer", sy::wireTransfer}, {"wireScatter", sy::wireScatter}, {"wireSum", sy::wireSum},
      {"wireWeightedSum", sy::wireWeightedSum},
  };
  for (const auto &f : functions) {
    napi_value v;
    napi_create_function(env, f.name, NAPI_AUTO_LENGTH, f.f, nullptr, &v);
    napi_set_named_property(env, exports, f.name, v);
  }
  napi_value version;
  napi_create_int32(env, sy::INTERFACE_VERSION, &version);
  napi_set_named_property(env, exports, "interfaceVersion", version);
  return exports;
}
