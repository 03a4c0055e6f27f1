// The routed experts' arithmetic in the open: layouts of rows, permutation, grouped GEMM. docs/experts.md explains them.
export { bindContiguousExperts, type ContiguousArguments, type ExpertKit, type HeldExperts } from './contiguous.js'
export { ExpertLayoutError } from './errors.js'
export { bindContiguousGemm, bindMaskedGemm, forEachSegment, type GroupedWeight } from './grouped-gemm.js'
export { bindFillBatched, bindMaskedExperts, type MaskedArguments } from './masked.js'
export { bindPermute, bindUnpermute } from './permute.js'
export {
  lendPlanMemory,
  type PermutePlan,
  type PermuteShape,
  type PlanMemory,
  permutedRows,
  permutedRowsBound,
  planPermute,
} from './permute-plan.js'
