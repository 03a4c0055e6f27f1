// Errors of `.pt` files. Every refusal names the file and says what to do in PyTorch to get a file that can be read.

import { errorArea } from '../../config/errors.js'

const RESAVE = 'Save it again with torch.save({"logical_count": tensor.cpu()}, path) and pass that file.'

export class TorchFileError extends errorArea('TorchFile', {
  SY_TORCH_UNREADABLE: {
    status: 400,
    message: 'cannot read {file}: {why}',
    remedy: 'Check the path and the permissions of the file.',
  },
  SY_TORCH_NOT_TORCH: {
    status: 400,
    message: '{file} is not a file of torch.save: {why}',
    remedy: `Pass a .pt file as torch.save writes it. ${RESAVE}`,
  },
  SY_TORCH_DAMAGED: {
    status: 400,
    message: '{file} is damaged: {why}',
    remedy: 'Copy the file again from the machine that wrote it (compare sizes or checksums), or record a new dump.',
  },
  SY_TORCH_ZIP_MEMBER: {
    status: 400,
    message: 'member {member} of {file} is {what}; torch.save stores members as they are',
    remedy: `The file was repacked by another program. ${RESAVE}`,
  },
  SY_TORCH_GLOBAL: {
    status: 400,
    message: '{file} asks to load the Python object {name}, which is not a plain tensor type; nothing was executed',
    remedy:
      'If you trust the file, load it in PyTorch and save only its tensors: torch.save({"logical_count": t.cpu()}, path). If you do not know where it comes from, delete it.',
  },
  SY_TORCH_OPCODE: {
    status: 400,
    message:
      '{file} uses the pickle instruction {opcode} at byte {offset}, which tensors never need; nothing was executed',
    remedy:
      'If you trust the file, load it in PyTorch and save only its tensors and plain numbers; otherwise delete it.',
  },
  SY_TORCH_DTYPE: {
    status: 400,
    message: '{file} holds a tensor of type {dtype}, which cannot hold expert counts or maps',
    remedy: 'Convert it in PyTorch first: tensor.to(torch.int64), then save again.',
  },
  SY_TORCH_TOO_LARGE: {
    status: 400,
    message: '{file}: {what} is {size}, more than the limit of {limit}',
    remedy: 'Cut the dump in PyTorch (for example t[-1000:] for the last 1000 steps), or dump more often.',
  },
  SY_TORCH_INT64_RANGE: {
    status: 400,
    message: '{file} holds the integer {value}, beyond 2^53, where counts are no longer exact',
    remedy: 'Counts this large are usually uninitialised memory: record a new dump, or dump more often.',
  },
}) {}
