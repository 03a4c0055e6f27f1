// Weights into device memory: from a checkpoint, or made up.
export { checkWeights, type Fp8Block } from './check-weights.js'
export { type DummyOptions, loadDummyWeights } from './dummy-weights.js'
export { type LoadOptions, loadWeights } from './load-weights.js'
export { packedBytesOf } from './pack-plan.js'
