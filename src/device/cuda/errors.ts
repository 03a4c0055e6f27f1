// What can go wrong between Switchyard and a GPU: libraries and devices that are missing, kernels that do not compile, and
// calls into NVIDIA's libraries that fail. Bad operands are our own mistakes and throw `Unreachable` instead.
import { errorArea } from '../../config/errors.js'

export class CudaError extends errorArea('CUDA', {
  SY_CUDA_UNAVAILABLE: {
    status: 400,
    message: 'No GPU can be used: {missing}.',
    remedy: '{fix}. Or compute on the CPU: --device cpu. `switchyard doctor` lists what is there and what is missing.',
  },
  SY_CUDA_NO_DEVICE: {
    status: 400,
    message: 'There is no GPU {ordinal}: the driver shows {count}.',
    remedy: 'Name one that `switchyard doctor` lists; CUDA_VISIBLE_DEVICES can hide GPUs and renumbers the rest.',
  },
  SY_CUDA_OLD_DEVICE: {
    status: 400,
    message: 'GPU {ordinal} ({name}) has compute capability {capability}; kernels need 8.0 or later.',
    remedy: 'Use an Ampere, Ada, Hopper or later GPU, or compute on the CPU: --device cpu.',
  },
  SY_CUDA_CALL: {
    status: 500,
    message: '{call} failed with error {number}, {name}: {text}.',
    remedy: '{advice}',
  },
  SY_CUDA_BAD_INDEX: {
    status: 503,
    message: '{what} {index} lies outside its table',
    remedy:
      'This is a bug in Switchyard: please report it with the command you ran. SWITCHYARD_CUDA_SYNC=1 with --disable-cuda-graph looks after every operation.',
  },
  SY_CUDA_OUT_OF_MEMORY: {
    status: 503,
    message: '{purpose} needs {needed} GiB on GPU {ordinal}; {free} of {total} GiB are free.',
    remedy:
      'End other programs on this GPU, or take less: a smaller --mem-fraction-static or --max-total-tokens, --dtype bfloat16, a smaller model.',
  },
  SY_CUDA_COMPILE: {
    status: 500,
    message: '{file} does not compile for {architecture}: {log}',
    remedy:
      'Check that the installed NVRTC is of CUDA 12.4 or later and knows this GPU (`switchyard doctor`); if it does, please report this message.',
  },
  SY_CUDA_NO_KERNEL: {
    status: 500,
    message: 'The compiled {file} has no kernel {name}: {text}.',
    remedy: 'Reinstall the package; if this stays, please report this message.',
  },
  SY_CUDA_NVRTC: {
    status: 500,
    message: '{call} of the run-time compiler failed with error {number}: {text}.',
    remedy: 'Install an NVRTC of the same major version as the driver (`switchyard doctor` shows both).',
  },
  SY_CUDA_WRONG_RESULT: {
    status: 500,
    message: '{kernel} gives wrong results for {shape}: off by {ratio} times what rounding allows.',
    remedy:
      'Check the GPU with its vendor’s diagnostics; if other programs compute right on it, please report this message.',
  },
  SY_CUDA_BLAS: {
    status: 500,
    message: '{call} of cuBLASLt failed with status {number}, {name}, for {what}.',
    remedy: 'Install a cuBLAS of the same major version as the driver (`switchyard doctor` shows both).',
  },
}) {}

/** Errors after which nothing on the GPU works in this process: a kernel went wrong, or the driver is shutting down. */
export const isContextLost = (number: number): boolean =>
  number === 4 || (number >= 700 && number <= 720 && !USABLE.has(number))

/** In that range, but about one call only: out of registers for a launch, peer access, memory already registered or not. */
const USABLE = new Set([701, 703, 704, 705, 708, 711, 712, 713])

/** What to do about a failed driver call, by its number (CUresult in NVIDIA's driver API reference). */
export function adviceFor(number: number): string {
  if (isContextLost(number) && number !== 710) return KERNEL_WENT_WRONG
  switch (number) {
    case 2:
      return 'End other programs on this GPU, or take less memory: a smaller --mem-fraction-static, --max-total-tokens or model.'
    case 3:
    case 100:
      return 'Check that `nvidia-smi` lists the GPU for this user and that CUDA_VISIBLE_DEVICES does not hide it.'
    case 200:
    case 209:
    case 222:
      return 'The compiled kernels do not suit this GPU or driver: update the driver, or remove the cache of kernels (`switchyard doctor` says where it is).'
    case 35:
    case 803:
      return 'Update the driver: it is older than the CUDA libraries.'
    case 701:
      return 'A kernel asks for more than this GPU has; please report the command you ran and the GPU.'
    case 710:
      return 'A check inside a kernel failed. Restart the process; please report the command and what the GPU printed.'
    case 46:
    case 802:
    case 999:
      return 'The GPU is in a bad state or still starting: look at `nvidia-smi` and `dmesg`, then try again.'
    default:
      return 'Look up the error in the CUDA driver API reference; if it happens again, please report the command you ran.'
  }
}

const KERNEL_WENT_WRONG =
  'A kernel went wrong and this process can no longer use the GPU. Restart it; please report the command with the output of compute-sanitizer. SWITCHYARD_CUDA_SYNC=1 with --disable-cuda-graph tells the operation.'
