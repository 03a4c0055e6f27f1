// Layers: each emits its operations into a program and names the weights it needs.
export * from './boundary/index.js'
export {
  type BatchInputs,
  cut,
  elementsOf,
  joined,
  type LayerContext,
  rowsOf,
  type Shard,
  stacked,
  WHOLE,
} from './context.js'
export { type GqaNames, gqaAttention, gqaKvColumns } from './gqa.js'
export { type MlaNames, mlaAttention, mlaKvColumns } from './mla.js'
export { gatedMlp, type MlpNames } from './mlp.js'
export { type ExpertPieces, type ExpertWidth, type MoeNames, moeFeedForward, separateExperts } from './moe.js'
