// Memory for JavaScript: addresses of views, read-only mappings of files, and the probes of this core's limits.
// A mapping is unmapped when its ArrayBuffer is collected. Nothing here keeps state.
#include "addon.h"
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

namespace sy {
namespace {

void unmap(napi_env, void *data, void *hint) {
  // `data` points into the mapping: the page before it is where the mapping starts.
  uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), start = (uintptr_t)data / page * page;
  munmap((void *)start, (size_t)(uintptr_t)hint);
}

double seconds() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

double numberOf(napi_env env, napi_value v) {
  double d = -1;
  napi_get_value_double(env, v, &d);
  return d;
}

napi_value result(napi_env env, double d) {
  napi_value v;
  napi_create_double(env, d, &v);
  return v;
}

const KernelTable *best() {
  const KernelTable *t = nullptr;
  for (int i = 0; i < 4; i++)
    if (tableAt(i)) t = tableAt(i);
  return t;
}

} // namespace

// addressOf(view): the address of its first byte, exact as a double.
napi_value addressOf(napi_env env, napi_callback_info info) {
  size_t n = 1, length, at;
  napi_value a[1], buffer;
  napi_typedarray_type type;
  void *data = nullptr;
  napi_get_cb_info(env, info, &n, a, nullptr, nullptr);
  if (napi_get_typedarray_info(env, a[0], &type, &length, &data, &buffer, &at) != napi_ok || !data) {
    napi_throw_error(env, nullptr, "addressOf takes a typed array that is not empty");
    return nullptr;
  }
  return result(env, (double)(uintptr_t)data);
}

// mapFile(path, offset, length): a read-only ArrayBuffer over that part of the file. Throws `code:errno text`.
napi_value mapFile(napi_env env, napi_callback_info info) {
  size_t n = 3, size = 0;
  napi_value a[3], buffer;
  char path[4096];
  napi_get_cb_info(env, info, &n, a, nullptr, nullptr);
  if (n < 3 || napi_get_value_string_utf8(env, a[0], path, sizeof path, &size) != napi_ok || size + 1 >= sizeof path) {
    napi_throw_error(env, nullptr, "mapFile(path, offset, length): a path below 4095 bytes");
    return nullptr;
  }
  double offset = numberOf(env, a[1]), length = numberOf(env, a[2]);
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  struct stat st;
  if (fd < 0 || fstat(fd, &st) != 0) {
    napi_throw_error(env, nullptr, strerror(errno));
    if (fd >= 0) close(fd);
    return nullptr;
  }
  if (!(offset >= 0 && length > 0 && offset + length <= (double)st.st_size)) {
    close(fd);
    napi_throw_error(env, nullptr, "the range reaches beyond the file");
    return nullptr;
  }
  i64 page = sysconf(_SC_PAGESIZE), start = (i64)offset / page * page, lead = (i64)offset - start;
  size_t whole = (size_t)(lead + (i64)length);
  void *m = mmap(nullptr, whole, PROT_READ, MAP_SHARED, fd, start);
  int error = errno;
  close(fd);
  if (m == MAP_FAILED) {
    napi_throw_error(env, nullptr, strerror(error));
    return nullptr;
  }
  if (napi_create_external_arraybuffer(env, (char *)m + lead, (size_t)length, unmap, (void *)(uintptr_t)whole, &buffer) != napi_ok) {
    munmap(m, whole);
    napi_throw_error(env, nullptr, "this runtime does not take external memory");
    return nullptr;
  }
  return buffer;
}

// adviseHugePages(address, bytes): asks for 2 MiB pages behind a span. True when the system agreed.
napi_value adviseHugePages(napi_env env, napi_callback_info info) {
  size_t n = 2;
  napi_value a[2], answer;
  napi_get_cb_info(env, info, &n, a, nullptr, nullptr);
  bool ok = false;
#ifdef MADV_HUGEPAGE
  const uintptr_t HUGE_PAGE = 2u << 20;
  uintptr_t from = (uintptr_t)numberOf(env, a[0]), to = from + (uintptr_t)numberOf(env, a[1]);
  from = (from + HUGE_PAGE - 1) / HUGE_PAGE * HUGE_PAGE;
  to = to / HUGE_PAGE * HUGE_PAGE;
  ok = from < to && madvise((void *)from, to - from, MADV_HUGEPAGE) == 0;
#endif
  napi_get_boolean(env, ok, &answer);
  return answer;
}

// readBandwidth(address, bytes): bytes per second of one pass over the memory by this thread.
napi_value readBandwidth(napi_env env, napi_callback_info info) {
  size_t n = 2;
  napi_value a[2];
  napi_get_cb_info(env, info, &n, a, nullptr, nullptr);
  i64 bytes = (i64)numberOf(env, a[1]);
  const char *p = (const char *)(uintptr_t)numberOf(env, a[0]);
  double t0 = seconds(), sum = best()->readSum(p, bytes), t = seconds() - t0;
  return result(env, sum == -1.25e300 ? 0 : (double)bytes / t); // the sum is used, so that the reads happen
}

// multiplyAddRate(isa): floating-point operations per second of this thread from registers.
napi_value multiplyAddRate(napi_env env, napi_callback_info info) {
  size_t n = 1;
  napi_value a[1];
  napi_get_cb_info(env, info, &n, a, nullptr, nullptr);
  i32 wanted = (i32)numberOf(env, a[0]);
  const KernelTable *table = nullptr;
  for (int i = 0; i < 4; i++)
    if (tableAt(i) && wanted-- == 0) table = tableAt(i);
  if (!table) {
    napi_throw_error(env, nullptr, "no such instruction set here");
    return nullptr;
  }
  i64 done = 0;
  double t0 = seconds(), sum = table->multiplyAdds(2000000, &done), t = seconds() - t0;
  return result(env, sum == -1.25e300 ? 0 : (double)done / t);
}

} // namespace sy
