// Memory of the kernels' own, for a WebAssembly module without a C library: see module.cpp. Nothing is given back.
#pragma once
#include <stddef.h>

extern "C" {
void *calloc(size_t count, size_t bytes);
int posix_memalign(void **out, size_t alignment, size_t bytes);
void free(void *p);
}
