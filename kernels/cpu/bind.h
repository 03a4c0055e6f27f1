// Reading of the numbers that bind an operation: shared by the N-API addon and the WebAssembly module.
// Invariant: nothing here knows who calls; errors are kept in the Reader as text.
#pragma once
#include "args.h"
#include <stddef.h>

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

} // namespace sy
