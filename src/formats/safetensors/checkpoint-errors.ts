// Errors of checkpoint files and of the weights in them. Each names the file, the tensor, what was expected and what was found.
import { errorArea } from '../../config/errors.js'

export class CheckpointError extends errorArea('Checkpoint', {
  SY_CHECKPOINT_NOT_FOUND: {
    status: 400,
    message: '{file}: expected {expected}, found {found}',
    remedy:
      'name a directory that holds config.json and model.safetensors (or model.safetensors.index.json with its shards)',
  },
  SY_CHECKPOINT_READ: {
    status: 400,
    message: '{file}: could not be read: {found}',
    remedy: 'check the permissions of the file and that nothing replaces it while it is read',
  },
  SY_CHECKPOINT_TRUNCATED: {
    status: 400,
    message: '{file}: {tensor} needs {expected} bytes, the file has {found}',
    remedy: 'the file is cut off: download or copy it again and compare its size with the original',
  },
  SY_CHECKPOINT_HEADER: {
    status: 400,
    message: '{file}: the header is broken: expected {expected}, found {found}',
    remedy: 'this is not an intact safetensors file: download it again or write it again with the safetensors library',
  },
  SY_CHECKPOINT_TENSOR: {
    status: 400,
    message: '{file}: tensor {tensor}: expected {expected}, found {found}',
    remedy: 'the header contradicts itself: download the file again or write it again with the safetensors library',
  },
  SY_CHECKPOINT_INDEX: {
    status: 400,
    message: '{file}: expected {expected}, found {found}',
    remedy: 'model.safetensors.index.json must map each tensor name to the name of a shard in the same directory',
  },
  SY_CHECKPOINT_SHARD_MISSING: {
    status: 400,
    message: '{file}: shard {shard} is not in the directory; it should hold {tensor} (shards missing: {missing})',
    remedy: 'download the missing shards into the same directory',
  },
  SY_CHECKPOINT_WRONG_SHARD: {
    status: 400,
    message: '{file}: tensor {tensor}: expected in {expected}, found {found}',
    remedy: 'the index and the shards are of different downloads: download the checkpoint again',
  },
  SY_CHECKPOINT_NO_TENSOR: {
    status: 400,
    message: '{file}: there is no tensor {tensor}',
    remedy: 'list the tensors with `switchyard inspect`',
  },
  SY_CHECKPOINT_NOT_FINITE: {
    status: 400,
    message: 'weight {weight} (from tensor {tensor}) is not a finite number at element {index}',
    remedy: 'the file is damaged or was saved by a run that had diverged: get the checkpoint again',
  },
  SY_CHECKPOINT_WEIGHTS: {
    status: 400,
    message: '{file}: {count} of its weights do not fit the model: {problems}',
    remedy:
      'check that config.json belongs to these weights; tensors of adapters or other heads must be merged or removed first',
  },
  SY_CHECKPOINT_WRITE: {
    status: 500,
    message: '{file}: could not be written: {found}',
    remedy: 'check that the directory exists, is writable and has room',
  },
}) {}
