// The kernels of one instruction set: each is defined in the file named beside it and put into the table by table.cpp.
// Every function here is compiled once per instruction set, in the namespace SY_ISA.
#pragma once
#include "args.h"

namespace sy {
namespace SY_ISA {

void linearJob(const LinearJob &job);             // linear.cpp
int embed(const EmbedArgs &, i64 rows);           // linear.cpp
int linear(const LinearArgs &, i64 rows);         // linear.cpp
int headLinear(const HeadLinearArgs &, i64 rows); // linear.cpp
int experts(const ExpertsArgs &, i64 rows);       // experts.cpp
int attention(const AttentionArgs &, i64 rows);   // attention.cpp
int rmsNorm(const RmsNormArgs &, i64 rows);       // elementwise.cpp
int addRmsNorm(const AddRmsNormArgs &, i64 rows);
int sumAddRmsNorm(const SumAddRmsNormArgs &, i64 rows);
int add(const AddArgs &, i64 rows);
int copy(const CopyArgs &, i64 rows);
int gatherRows(const GatherArgs &, i64 rows);
int rope(const RopeArgs &, i64 rows);
int storeKv(const StoreKvArgs &, i64 rows);
int gatedActivation(const GatedArgs &, i64 rows);
int sigmoidScale(const SigmoidScaleArgs &, i64 rows);
int router(const RouterArgs &, i64 rows); // router.cpp
int sample(const SampleArgs &, i64 rows); // sample.cpp
void packMatrix(const PackMatrixArgs &);  // pack.cpp
void packVector(const PackVectorArgs &);
double readSum(const char *p, i64 bytes); // table.cpp
double multiplyAdds(i64 steps, i64 *done);

} // namespace SY_ISA
} // namespace sy
