// What can go wrong with the CPU device before a rank starts: kernels that are asked for and not there.
// Bad operands are our own mistakes and throw `Unreachable` instead.
import { errorArea } from '../../config/errors.js'

export class CpuDeviceError extends errorArea('CPU device', {
  SY_DEVICE_NO_NATIVE_KERNELS: {
    status: 500,
    message: 'Native CPU kernels were asked for but cannot be used: {reason}.',
    remedy:
      'Run `node scripts/build-kernels.mjs` (it needs g++ or clang++) and read what it says, or use the reference kernels.',
  },
  SY_DEVICE_NO_WASM_KERNELS: {
    status: 500,
    message: 'WebAssembly kernels cannot be used: {path} does not load: {reason}.',
    remedy: 'Reinstall the package, or use other kernels: --kernels native (needs a compiler) or --kernels reference.',
  },
  SY_DEVICE_WASM_MEMORY: {
    status: 503,
    message: 'The memory of the WebAssembly kernels could not be had: {reason}.',
    remedy:
      'Allow this process more memory (addresses: `ulimit -v`, or the limit of its container), or install g++ or clang++ and run `npm rebuild`: native kernels need no memory of that kind.',
  },
  SY_DEVICE_WASM_MEMORY_FULL: {
    status: 400,
    message:
      'WebAssembly kernels reach {limit} GiB in all, and {purpose} needs {needed} GiB beside the {lent} GiB already taken.',
    remedy:
      'Install g++ or clang++ and run `npm rebuild`: native kernels have no such limit. Or take less: --dtype bfloat16, a smaller --max-total-tokens or --max-running-requests, a smaller model.',
  },
  SY_DEVICE_UNKNOWN_ISA: {
    status: 400,
    message: 'This processor does not run CPU kernels for "{isa}"; it runs {available}.',
    remedy: 'Set SWITCHYARD_CPU_ISA to one of {available}, or leave it unset to take the best.',
  },
  SY_DEVICE_UNREADABLE_FILE: {
    status: 400,
    message: 'Bytes {from} to {to} of {path} cannot be read: {reason}.',
    remedy: 'Check that the file exists, is complete and may be read by this user.',
  },
}) {}
