// The functions of string.h that the kernels use, for a WebAssembly module without a C library: the compiler's own,
// which are moves of registers or single instructions (memory.copy, memory.fill).
#pragma once
#include <stddef.h>

#define memcpy(to, from, bytes) __builtin_memcpy(to, from, bytes)
#define memmove(to, from, bytes) __builtin_memmove(to, from, bytes)
#define memset(to, value, bytes) __builtin_memset(to, value, bytes)
