// The table of one instruction set's kernels, and the two probes that say what the core can do at best: reading
// memory, and multiply-adds from registers. Benchmarks divide by the probes' figures of the same minute.
#include "kernels.h"
#include "simd.h"

#define SY_TABLE_NAME2(isa) table_##isa
#define SY_TABLE_NAME(isa) SY_TABLE_NAME2(isa)
#define SY_TEXT2(isa) #isa
#define SY_TEXT(isa) SY_TEXT2(isa)

namespace sy {
namespace SY_ISA {

// Eight streams, each an eighth of the memory: one stream alone does not fill a core's line-fill buffers.
double readSum(const char *p, i64 bytes) {
  enum { STREAMS = 8, AHEAD = 1024 };
  i64 each = bytes / STREAMS / 64 * 64;
  V s[STREAMS];
#pragma GCC unroll 8
  for (int j = 0; j < STREAMS; j++) s[j] = zero();
  for (i64 i = 0; i < each; i += 64)
#pragma GCC unroll 8
    for (int j = 0; j < STREAMS; j++) {
      const char *q = p + j * each + i;
      __builtin_prefetch(q + AHEAD);
#pragma GCC unroll 4
      for (int v = 0; v < NV; v++) s[j] = s[j] + load((const float *)q + v * W);
    }
  return sumLanes(((s[0] + s[1]) + (s[2] + s[3])) + ((s[4] + s[5]) + (s[6] + s[7])));
}

double multiplyAdds(i64 steps, i64 *done) {
  enum { CHAINS = 12 };
  V a[CHAINS], x = splat(0.999f), y = splat(0.001f);
#pragma GCC unroll 12
  for (int i = 0; i < CHAINS; i++) a[i] = splat((float)i);
  for (i64 s = 0; s < steps; s++)
#pragma GCC unroll 12
    for (int i = 0; i < CHAINS; i++) {
      a[i] = fma(a[i], x, y);
      SY_PIN(a[i]);
    }
  *done = steps * CHAINS * W * 2;
  V t = a[0];
#pragma GCC unroll 12
  for (int i = 1; i < CHAINS; i++) t = t + a[i];
  return sumLanes(t);
}

namespace {
template <class A, int (*F)(const A &, i64)> int call(const void *args, i64 rows) { return F(*(const A *)args, rows); }
} // namespace

} // namespace SY_ISA

extern const KernelTable SY_TABLE_NAME(SY_ISA);
const KernelTable SY_TABLE_NAME(SY_ISA) = {
    SY_TEXT(SY_ISA),
    {
        SY_ISA::call<EmbedArgs, SY_ISA::embed>, SY_ISA::call<RmsNormArgs, SY_ISA::rmsNorm>,
        SY_ISA::call<AddRmsNormArgs, SY_ISA::addRmsNorm>, SY_ISA::call<AddArgs, SY_ISA::add>,
        SY_ISA::call<CopyArgs, SY_ISA::copy>, SY_ISA::call<GatherArgs, SY_ISA::gatherRows>,
        SY_ISA::call<LinearArgs, SY_ISA::linear>, SY_ISA::call<HeadLinearArgs, SY_ISA::headLinear>,
        SY_ISA::call<RopeArgs, SY_ISA::rope>, SY_ISA::call<StoreKvArgs, SY_ISA::storeKv>,
        SY_ISA::call<AttentionArgs, SY_ISA::attention>, SY_ISA::call<RouterArgs, SY_ISA::router>,
        SY_ISA::call<GatedArgs, SY_ISA::gatedActivation>, SY_ISA::call<SigmoidScaleArgs, SY_ISA::sigmoidScale>,
        SY_ISA::call<ExpertsArgs, SY_ISA::experts>, SY_ISA::call<SampleArgs, SY_ISA::sample>,
        SY_ISA::call<SumAddRmsNormArgs, SY_ISA::sumAddRmsNorm>,
    },
    SY_ISA::packMatrix,
    SY_ISA::packVector,
    SY_ISA::readSum,
    SY_ISA::multiplyAdds,
};

} // namespace sy
