// A checkpoint described as plain data.
export {
  type AttentionReport,
  type CheckpointReport,
  cachedValues,
  type ExpertReport,
  inspectCheckpoint,
  type WeightReport,
} from './inspect.js'
