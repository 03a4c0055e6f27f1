// Logarithm and exponential in double precision are those of the JavaScript engine, so that noise and masses of
// sampling have exactly the bits of src/runtime/random.ts and of the reference.
#pragma once

extern "C" {
__attribute__((import_module("math"), import_name("exp"))) double exp(double x);
__attribute__((import_module("math"), import_name("log"))) double log(double x);
}
