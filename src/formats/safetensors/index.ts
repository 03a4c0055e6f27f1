// Reading and writing safetensors checkpoints.
export {
  type Checkpoint,
  INDEX_FILE,
  type MapRange,
  openCheckpoint,
  readRange,
  SINGLE_FILE,
} from './checkpoint.js'
export { CheckpointError } from './checkpoint-errors.js'
export { DTYPE_BYTES, elementCount, showShape } from './dtypes.js'
export { readSafetensorsHeader, type SafetensorsHeader, type TensorInfo } from './header.js'
export { type TensorToWrite, writeSafetensors } from './writer.js'
