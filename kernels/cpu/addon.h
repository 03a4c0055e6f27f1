// What the three files of the addon share. The addon keeps no mutable state of its own: bound kernels belong to the
// JavaScript function that runs them and are freed with it, so any number of workers may load it.
#pragma once
#define NAPI_VERSION 8
#include "args.h"
#include <node_api.h>

namespace sy {

// Reads the flat list of numbers that src/device/cpu/native-ops.ts writes for an operation, checking as it goes.
// A span is [address, bytes]; rows are a span, offset, stride; see `rows`, `matrix`, `vector`.
struct Reader {
  const double *d;
  size_t length, at;
  i64 maxRows;
  const char *error;

  double number();
  i64 integer();
  Rows rows(i64 width, bool limits = true); // limits: maxRows shrinks to the rows that lie inside the span
  Index index(i64 width = 1, bool limits = true);
  Matrix matrix();
  const float *vector(i64 least); // null when its length is 0
  void need(bool condition, const char *what);
};

// A bound kernel: what the JavaScript function's data pointer holds.
struct Bound {
  Run run;
  i64 maxRows;
  void *args, *scratch;
};

bool bind(const KernelTable &table, int op, Reader &r, Bound &b); // bind.cpp

napi_value mapFile(napi_env env, napi_callback_info info);          // memory.cpp
napi_value addressOf(napi_env env, napi_callback_info info);
napi_value adviseHugePages(napi_env env, napi_callback_info info);
napi_value readBandwidth(napi_env env, napi_callback_info info);
napi_value multiplyAddRate(napi_env env, napi_callback_info info);

const KernelTable *tableAt(int i); // addon.cpp: null when not compiled in or the processor lacks it

} // namespace sy
