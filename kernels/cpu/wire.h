// Moving rows between ranks: argument blocks of the wire kernels, shared by wire.cpp (once per instruction set) and
// wire-bind.cpp. Invariant: wire-bind.cpp has checked addresses, strides and the lengths of index lists; the kernels check
// the row numbers they read as data. The formats are those of src/comm/wire/format.ts.
#pragma once
#include "args.h"

namespace sy {

enum WireDtype : int { WIRE_F32 = 0, WIRE_BF16 = 1, WIRE_FP8 = 2, WIRE_INT8 = 3 };
enum { QUANT_BLOCK = 128 };

// Rows of one format: row r is `hidden` elements at p + r * stride, scales at scaleOffset from there.
struct WireRows {
  char *p;
  i64 stride, capacity, scaleOffset;
  int dtype;
  bool roundScales;
  char *row(i64 r) const { return p + r * stride; }
};

// to[toIndex[i]] = from[fromIndex[i]] for i < n, converted when the formats differ (one of them is then f32).
// A null index counts up from `fromRow` or `toRow`. `caching`: whether what is written bypasses the caches.
enum Caching : int { CACHE_BY_SIZE = 0, CACHE_BYPASS = 1, CACHE_KEEP = 2 };
struct TransferArgs { WireRows from, to; i64 hidden, n, fromRow, toRow; int caching; const i32 *fromIndex, *toIndex; };

// to[m][table[i * members + m]] = from[fromRow + i] for every entry that is not negative. Formats are equal.
struct ScatterArgs { WireRows from; const WireRows *to; i64 hidden, n, fromRow, members; const i32 *table; };

// out[i] = sum over m, ascending, of from[m][table[i * members + m]] (negative: nothing); zeros when there is none.
struct WireSumArgs { WireRows out; const WireRows *from; i64 hidden, n, outRow, members; const i32 *table; };

// to[toIndex[i]] = sum over k, ascending, of weights[i * topK + k] * from[index[i * topK + k]] (negative: nothing).
struct WeightedSumArgs { WireRows from, to; i64 hidden, n, topK, toRow; const i32 *index, *toIndex; const float *weights; float *scratch; };

struct WireTable {
  int (*transfer)(const TransferArgs &);
  int (*scatter)(const ScatterArgs &);
  int (*sum)(const WireSumArgs &, float *scratch);
  int (*weightedSum)(const WeightedSumArgs &);
};

} // namespace sy
