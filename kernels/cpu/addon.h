// What the three files of the addon share. The addon keeps no mutable state of its own: bound kernels belong to the
// JavaScript function that runs them and are freed with it, so any number of workers may load it.
#pragma once
#define NAPI_VERSION 8
#include "bind.h"
#include <node_api.h>

namespace sy {

// Raised whenever the meaning of a bind's numbers changes, here and in src/device/cpu/addon.ts: an addon built from
// other sources must not be used, since it would read arguments as addresses.
enum { INTERFACE_VERSION = 1 };

napi_value mapFile(napi_env env, napi_callback_info info);          // memory.cpp
napi_value addressOf(napi_env env, napi_callback_info info);
napi_value adviseHugePages(napi_env env, napi_callback_info info);
napi_value readBandwidth(napi_env env, napi_callback_info info);
napi_value multiplyAddRate(napi_env env, napi_callback_info info);

napi_value wireTransfer(napi_env env, napi_callback_info info); // wire-bind.cpp
napi_value wireScatter(napi_env env, napi_callback_info info);
napi_value wireSum(napi_env env, napi_callback_info info);
napi_value wireWeightedSum(napi_env env, napi_callback_info info);

const KernelTable *tableAt(int i); // addon.cpp: null when not compiled in or the processor lacks it

} // namespace sy
