// The WebAssembly module: binding, running and packing, over the same kernels as the N-API addon (kernels/cpu).
//
// Invariant: the memory is imported and shared by all instances of a node. An instance owns what it grows the memory by
// (its stack, argument blocks and working space) and nothing else; it is used by one thread. No mutable globals are
// shared: those below are set in zeroed memory of their own per instance, reached through `state`.
// Addresses and counts cross the border as doubles inside a list of numbers, or as plain i32.
#include "bind.h"
#include <stdlib.h>
#include <string.h>

namespace sy {
extern const KernelTable table_simd128;

// What an instance keeps. Lives in memory that the instance grew for itself.
struct State {
  char *next, *end;  // rest of the newest piece of memory for argument blocks
  char *space;       // working space of all kernels: they run one after another and keep nothing in it between calls
  size_t spaceBytes;
  const char *error;
};

} // namespace sy

using namespace sy;

// An address, but a global of the instance (a WebAssembly global), not a word of the shared memory.
static State *state __attribute__((address_space(1)));

namespace {

enum { PAGE = 65536 };

// Fresh zeroed pages at the end of the memory. Growing is atomic, so they are this instance's alone. Null when full.
char *grow(size_t bytes) {
  size_t pages = (bytes + PAGE - 1) / PAGE, before = __builtin_wasm_memory_grow(0, pages);
  return before == (size_t)-1 ? nullptr : (char *)(before * PAGE);
}

char *take(size_t bytes) {
  State &s = *state;
  bytes = (bytes + 63) / 64 * 64;
  if ((size_t)(s.end - s.next) < bytes) {
    size_t piece = bytes < PAGE ? PAGE : (bytes + PAGE - 1) / PAGE * PAGE;
    char *p = grow(piece);
    if (!p) return nullptr;
    s.next = p;
    s.end = p + piece;
  }
  char *p = s.next;
  s.next += bytes;
  return p;
}

} // namespace

extern "C" {

void *calloc(size_t count, size_t bytes) { return take(count * bytes); }

// Used for working space only, so every caller may get the same.
int posix_memalign(void **out, size_t, size_t bytes) {
  State &s = *state;
  if (bytes > s.spaceBytes) {
    char *p = grow(bytes);
    if (!p) return 1;
    s.space = p;
    s.spaceBytes = (bytes + PAGE - 1) / PAGE * PAGE;
  }
  *out = s.space;
  return 0;
}

void free(void *) {}

#define SY_EXPORT(name) __attribute__((export_name(#name)))

// First call of every instance, on a stack that `stackTop` was set to. 0 when there is no memory for it.
SY_EXPORT(start) int start() {
  char *p = grow(PAGE);
  if (!p) return 0;
  state = (State *)p;
  state->next = p + 64;
  state->end = p + PAGE;
  return 1;
}

SY_EXPORT(grow) char *growPages(size_t bytes) { return grow(bytes); }
SY_EXPORT(take) char *takeBytes(size_t bytes) { return take(bytes); }

// The bound kernel, or null: then `error` is the reason.
SY_EXPORT(bind) Bound *bindKernel(int op, const double *numbers, size_t length) {
  Reader r = {numbers, length, 0, INT64_MAX, nullptr};
  Bound *b = (Bound *)take(sizeof(Bound));
  if (b && bind(table_simd128, op, r, *b)) return b;
  state->error = r.error ? r.error : "no memory for a bound kernel";
  return nullptr;
}

SY_EXPORT(error) const char *error() { return state->error; }
SY_EXPORT(maxRows) double maxRows(const Bound *b) { return (double)b->maxRows; }
SY_EXPORT(run) int run(const Bound *b, int rows) { return b->run(b->args, rows); }

// Numbers: kind, k, rowStart, n, then the source's as `packSource` reads them. The caller has checked everything.
static PackSource packSource(const double *d, const u8 *bytes, const float *scales) {
  return {(int)d[0], bytes, (i64)d[1], (i64)d[2], (i64)d[3], scales, (i64)d[4], (i64)d[5], (i64)d[6], (i64)d[7]};
}

SY_EXPORT(packMatrix) void packMatrix(char *target, const double *d, const u8 *bytes, const float *scales) {
  int kind = (int)d[0];
  i64 k = (i64)d[1];
  table_simd128.packMatrix({target, kind, k, panelBytes(kind, k), (i64)d[2], (i64)d[3], packSource(d + 4, bytes, scales)});
}

SY_EXPORT(packVector) void packVector(float *target, const double *d, const u8 *bytes, const float *scales) {
  table_simd128.packVector({target, (i64)d[0], packSource(d + 1, bytes, scales)});
}

SY_EXPORT(readSum) double readSum(const char *p, double bytes) { return table_simd128.readSum(p, (i64)bytes); }

SY_EXPORT(multiplyAdds) double multiplyAdds(double steps) {
  i64 done = 0;
  double sum = table_simd128.multiplyAdds((i64)steps, &done);
  return sum == sum ? (double)done : 0;
}
}
