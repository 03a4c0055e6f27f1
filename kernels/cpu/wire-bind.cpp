// The wire kernels for JavaScript: checks the numbers that src/comm/wire/native.ts writes, then runs. Calls carry all their
// arguments; nothing is kept. A call moves many rows, so its cost does not matter.
#include "addon.h"
#include "wire.h"
#include <stdlib.h>

namespace sy {

#if defined(__x86_64__)
extern const WireTable wire_baseline, wire_avx2, wire_avx512;
static const WireTable *const WIRES[] = {&wire_baseline, &wire_avx2, &wire_avx512};
#else
extern const WireTable wire_neon;
static const WireTable *const WIRES[] = {&wire_neon};
#endif

namespace {

enum { MAX_MEMBERS = 4096 };

struct Call {
  napi_env env;
  const WireTable *table;
  Reader r;
  napi_value list[3];

  // Arguments: isa, Float64Array, then up to three typed arrays (or undefined).
  Call(napi_env e, napi_callback_info info) : env(e), table(nullptr), r{nullptr, 0, 0, INT64_MAX, nullptr} {
    size_t n = 5, at;
    napi_value a[5], buffer;
    napi_typedarray_type type;
    void *data = nullptr;
    napi_get_cb_info(env, info, &n, a, nullptr, nullptr);
    i32 wanted = 0;
    napi_get_value_int32(env, a[0], &wanted);
    for (int i = 0; i < (int)(sizeof WIRES / sizeof *WIRES); i++)
      if (tableAt(i) && wanted-- == 0) table = WIRES[i];
    bool ok = napi_get_typedarray_info(env, a[1], &type, &r.length, &data, &buffer, &at) == napi_ok && type == napi_float64_array;
    r.need(table && ok, "wire kernels take an instruction set and a Float64Array");
    if (ok) r.d = (const double *)data;
    else r.length = 0;
    for (int i = 0; i < 3; i++) list[i] = a[i + 2];
  }

  // A typed array of 4-byte elements with at least `least` of them; null when undefined is allowed and given.
  const void *elements(int i, napi_typedarray_type wanted, i64 least, bool optional) {
    napi_valuetype kind;
    napi_typeof(env, list[i], &kind);
    if (kind == napi_undefined) {
      r.need(optional, "a list is missing");
      return nullptr;
    }
    size_t length = 0, at;
    napi_typedarray_type type;
    napi_value buffer;
    void *data = nullptr;
    bool ok = napi_get_typedarray_info(env, list[i], &type, &length, &data, &buffer, &at) == napi_ok && type == wanted;
    r.need(ok && (i64)length >= least, "a list is too short or of another type");
    return data;
  }

  WireRows rows(i64 hidden) {
    WireRows w;
    w.p = (char *)(uintptr_t)r.integer();
    w.capacity = r.integer();
    w.stride = r.integer();
    w.dtype = (int)r.integer();
    w.scaleOffset = r.integer();
    w.roundScales = r.integer() != 0;
    r.need(w.dtype >= WIRE_F32 && w.dtype <= WIRE_INT8, "unknown wire format");
    r.need(w.capacity >= 0 && w.scaleOffset >= 0 && w.stride >= 0, "rows with a negative size");
    i64 element = w.dtype == WIRE_F32 ? 4 : w.dtype == WIRE_BF16 ? 2 : 1;
    i64 scales = w.dtype == WIRE_FP8 ? (hidden + QUANT_BLOCK - 1) / QUANT_BLOCK : w.dtype == WIRE_INT8 ? 1 : 0;
    r.need(w.capacity <= 1 || w.stride >= hidden * element, "rows overlap");
    r.need(scales == 0 || (w.scaleOffset >= hidden && w.stride >= w.scaleOffset + 4 * scales), "no room for scales");
    return w;
  }

  napi_value end(int status) {
    if (status != OK) napi_throw_error(env, nullptr, "a row number lies outside its rows");
    return nullptr;
  }
  napi_value fail() {
    napi_throw_error(env, nullptr, r.error);
    return nullptr;
  }
};

// Scratch of a call, freed with it.
struct Scratch {
  void *p;
  explicit Scratch(i64 bytes) : p(malloc((size_t)(bytes + 64))) {}
  ~Scratch() { free(p); }
};

} // namespace

// wireTransfer(isa, [hidden, n, fromRow, toRow, from…, to…, caching], fromIndex?, toIndex?)
napi_value wireTransfer(napi_env env, napi_callback_info info) {
  Call c(env, info);
  TransferArgs a;
  a.hidden = c.r.integer();
  a.n = c.r.integer();
  a.fromRow = c.r.integer();
  a.toRow = c.r.integer();
  a.from = c.rows(a.hidden);
  a.to = c.rows(a.hidden);
  a.caching = (int)c.r.integer();
  c.r.need(a.hidden > 0 && a.n >= 0, "a transfer without a width");
  c.r.need(a.from.dtype == a.to.dtype || a.from.dtype == WIRE_F32 || a.to.dtype == WIRE_F32, "a transfer between two wire formats");
  a.fromIndex = (const i32 *)c.elements(0, napi_int32_array, a.n, true);
  a.toIndex = (const i32 *)c.elements(1, napi_int32_array, a.n, true);
  return c.r.error ? c.fail() : c.end(c.table->transfer(a));
}

// wireScatter(isa, [hidden, n, fromRow, members, from…, to… of each member], table)
napi_value wireScatter(napi_env env, napi_callback_info info) {
  Call c(env, info);
  ScatterArgs a;
  a.hidden = c.r.integer();
  a.n = c.r.integer();
  a.fromRow = c.r.integer();
  a.members = c.r.integer();
  c.r.need(a.hidden > 0 && a.n >= 0 && a.members > 0 && a.members <= MAX_MEMBERS, "a scatter without a size");
  if (c.r.error) return c.fail();
  Scratch to(a.members * (i64)sizeof(WireRows));
  a.from = c.rows(a.hidden);
  for (i64 m = 0; m < a.members; m++) {
    ((WireRows *)to.p)[m] = c.rows(a.hidden);
    c.r.need(((WireRows *)to.p)[m].dtype == a.from.dtype, "a scatter between two formats");
  }
  a.to = (const WireRows *)to.p;
  a.table = (const i32 *)c.elements(0, napi_int32_array, a.n * a.members, false);
  return c.r.error ? c.fail() : c.end(c.table->scatter(a));
}

// wireSum(isa, [hidden, n, outRow, members, out…, from… of each member], table)
napi_value wireSum(napi_env env, napi_callback_info info) {
  Call c(env, info);
  WireSumArgs a;
  a.hidden = c.r.integer();
  a.n = c.r.integer();
  a.outRow = c.r.integer();
  a.members = c.r.integer();
  c.r.need(a.hidden > 0 && a.n >= 0 && a.members > 0 && a.members <= MAX_MEMBERS, "a sum without a size");
  if (c.r.error) return c.fail();
  Scratch from(a.members * (i64)sizeof(WireRows)), scratch(8 * a.members + 4 * a.hidden);
  a.out = c.rows(a.hidden);
  for (i64 m = 0; m < a.members; m++) {
    ((WireRows *)from.p)[m] = c.rows(a.hidden);
    c.r.need(((WireRows *)from.p)[m].dtype == ((WireRows *)from.p)[0].dtype, "a sum of two formats");
  }
  c.r.need(a.out.dtype == WIRE_F32, "sums are f32");
  a.from = (const WireRows *)from.p;
  a.table = (const i32 *)c.elements(0, napi_int32_array, a.n * a.members, false);
  return c.r.error ? c.fail() : c.end(c.table->sum(a, (float *)scratch.p));
}

// wireWeightedSum(isa, [hidden, n, topK, toRow, from…, to…], index, weights, toIndex?)
napi_value wireWeightedSum(napi_env env, napi_callback_info info) {
  Call c(env, info);
  WeightedSumArgs a;
  a.hidden = c.r.integer();
  a.n = c.r.integer();
  a.topK = c.r.integer();
  a.toRow = c.r.integer();
  c.r.need(a.hidden > 0 && a.n >= 0 && a.topK > 0, "a weighted sum without a size");
  if (c.r.error) return c.fail();
  a.from = c.rows(a.hidden);
  a.to = c.rows(a.hidden);
  a.index = (const i32 *)c.elements(0, napi_int32_array, a.n * a.topK, false);
  a.weights = (const float *)c.elements(1, napi_float32_array, a.n * a.topK, false);
  a.toIndex = (const i32 *)c.elements(2, napi_int32_array, a.n, true);
  if (c.r.error) return c.fail();
  Scratch scratch(8 * a.hidden);
  a.scratch = (float *)scratch.p;
  return c.end(c.table->weightedSum(a));
}

} // namespace sy
