// The driver API of CUDA: every call that Switchyard makes, with its signature, checked. Names and numbers are those of
// NVIDIA's cuda.h. Handles and addresses are numbers: user-space addresses are below 2^53.
import type { LibraryHandle } from 'koffi'
import { adviceFor, CudaError, isContextLost } from './errors.js'

const HANDLE = 'size_t'
const ADDRESS = 'size_t'
const OUT = '_Out_ size_t*'
const OUT_INT = '_Out_ int*'

/** Argument types of each call, in koffi's words. All return a CUresult. */
const SIGNATURES = {
  cuInit: ['uint'],
  cuDriverGetVersion: [OUT_INT],
  cuDeviceGetCount: [OUT_INT],
  cuDeviceGet: [OUT_INT, 'int'],
  cuDeviceGetName: ['void*', 'int', 'int'],
  cuDeviceGetPCIBusId: ['void*', 'int', 'int'],
  cuDeviceGetAttribute: [OUT_INT, 'int', 'int'],
  cuDeviceTotalMem_v2: [OUT, 'int'],
  cuDeviceCanAccessPeer: [OUT_INT, 'int', 'int'],
  cuDeviceGetP2PAttribute: [OUT_INT, 'int', 'int', 'int'],
  cuDevicePrimaryCtxRetain: [OUT, 'int'],
  cuDevicePrimaryCtxRelease_v2: ['int'],
  cuCtxSetCurrent: [HANDLE],
  cuCtxSynchronize: [],
  cuCtxEnablePeerAccess: [HANDLE, 'uint'],
  cuMemGetInfo_v2: [OUT, OUT],
  cuMemAlloc_v2: [OUT, 'size_t'],
  cuMemFree_v2: [ADDRESS],
  cuMemsetD8_v2: [ADDRESS, 'uint8_t', 'size_t'],
  cuMemsetD8Async: [ADDRESS, 'uint8_t', 'size_t', HANDLE],
  cuMemcpyHtoD_v2: [ADDRESS, 'size_t', 'size_t'],
  cuMemcpyDtoH_v2: ['size_t', ADDRESS, 'size_t'],
  cuMemcpyHtoDAsync_v2: [ADDRESS, 'size_t', 'size_t', HANDLE],
  cuMemcpyDtoHAsync_v2: ['size_t', ADDRESS, 'size_t', HANDLE],
  cuMemcpyAsync: [ADDRESS, ADDRESS, 'size_t', HANDLE],
  cuMemHostRegister_v2: ['size_t', 'size_t', 'uint'],
  cuMemHostUnregister: ['size_t'],
  cuMemHostGetDevicePointer_v2: [OUT, 'size_t', 'uint'],
  cuStreamCreateWithPriority: [OUT, 'uint', 'int'],
  cuStreamDestroy_v2: [HANDLE],
  cuStreamSynchronize: [HANDLE],
  cuStreamQuery: [HANDLE],
  cuStreamWaitEvent: [HANDLE, HANDLE, 'uint'],
  cuStreamBeginCapture_v2: [HANDLE, 'int'],
  cuStreamEndCapture: [HANDLE, OUT],
  cuGraphInstantiateWithFlags: [OUT, HANDLE, 'uint64_t'],
  cuGraphGetNodes: [HANDLE, HANDLE, OUT],
  cuGraphUpload: [HANDLE, HANDLE],
  cuGraphLaunch: [HANDLE, HANDLE],
  cuGraphDestroy: [HANDLE],
  cuGraphExecDestroy: [HANDLE],
  cuEventCreate: [OUT, 'uint'],
  cuEventDestroy_v2: [HANDLE],
  cuEventSynchronize: [HANDLE],
  cuEventRecordWithFlags: [HANDLE, HANDLE, 'uint'],
  cuEventElapsedTime: ['_Out_ float*', HANDLE, HANDLE],
  cuModuleLoadData: [OUT, 'void*'],
  cuModuleUnload: [HANDLE],
  cuModuleGetFunction: [OUT, HANDLE, 'str'],
  cuFuncGetAttribute: [OUT_INT, 'int', HANDLE],
  cuFuncSetAttribute: [HANDLE, 'int', 'int'],
  cuOccupancyMaxActiveBlocksPerMultiprocessor: [OUT_INT, HANDLE, 'int', 'size_t'],
  cuTensorMapEncodeTiled: [
    'size_t',
    'int',
    'uint32_t',
    ADDRESS,
    'size_t',
    'size_t',
    'size_t',
    'size_t',
    'int',
    'int',
    'int',
    'int',
  ],
} as const satisfies Record<string, readonly string[]>

export type DriverCall = keyof typeof SIGNATURES
/** What koffi takes: numbers, bytes, text, and one-element arrays for results. */
export type Argument = number | bigint | string | ArrayBufferView | (number | null)[] | null
type Raw = (...args: Argument[]) => number

/** CUresult values that code looks at. */
export const RESULT = {
  success: 0,
  outOfMemory: 2,
  alreadyRegistered: 712,
  peerAlreadyEnabled: 704,
  notReady: 600,
} as const

/** CUdevice_attribute, CUfunction_attribute and other enumerators in use (cuda.h). */
export const ATTRIBUTE = {
  sharedBytesPerSm: 81,
  sharedBytesPerBlock: 97,
  sms: 16,
  l2Bytes: 38,
  capabilityMajor: 75,
  capabilityMinor: 76,
} as const
export const FUNCTION_ATTRIBUTE = { sharedBytes: 1, localBytes: 3, registers: 4, dynamicSharedBytes: 8 } as const
export const P2P_ATTRIBUTE = { performanceRank: 1, access: 2, nativeAtomics: 3 } as const

/** A call that older drivers lack. */
function optionalCall(library: LibraryHandle, name: string, types: readonly string[]): Raw | undefined {
  try {
    return library.func(name, 'int', [...types]) as unknown as Raw
  } catch {
    return undefined
  }
}

/**
 * The driver, initialised. Failing calls throw; those whose result is an answer are asked with `ask`.
 * @example const address = driver.get('cuMemAlloc_v2', 1 << 20)
 */
export class CudaDriver {
  readonly #raw = {} as Record<DriverCall, Raw>
  readonly #text: (number: number) => { name: string; text: string }
  /** cuLaunchKernelEx(config, function, 0, extra) and cuEventQuery(event), unchecked: they are called most. */
  readonly launchRaw: (config: number, fn: number, params: number, extra: number) => number
  readonly queryEventRaw: (event: number) => number
  readonly #parameterInfo: Raw | undefined

  /** @throws CudaError SY_CUDA_UNAVAILABLE when the driver lacks a call, SY_CUDA_CALL when it does not start */
  constructor(library: LibraryHandle) {
    const find = (name: string, types: readonly string[]): Raw => {
      try {
        return library.func(name, 'int', [...types]) as unknown as Raw
      } catch (error) {
        const missing = `the driver has no ${name}, so it is older than CUDA 12`
        throw new CudaError('SY_CUDA_UNAVAILABLE', { missing, fix: 'Update the driver' }, { cause: error })
      }
    }
    for (const [name, types] of Object.entries(SIGNATURES)) this.#raw[name as DriverCall] = find(name, types)
    this.launchRaw = find('cuLaunchKernelEx', [HANDLE, HANDLE, HANDLE, HANDLE])
    this.queryEventRaw = find('cuEventQuery', [HANDLE])
    this.#parameterInfo = optionalCall(library, 'cuFuncGetParamInfo', [
      HANDLE,
      'size_t',
      '_Out_ size_t*',
      '_Out_ size_t*',
    ])
    const name = library.func('cuGetErrorName', 'int', ['int', '_Out_ str*'])
    const text = library.func('cuGetErrorString', 'int', ['int', '_Out_ str*'])
    const ask = (call: (number: number, out: (string | null)[]) => number, number: number): string => {
      const out: (string | null)[] = [null]
      return call(number, out) === 0 && out[0] ? out[0] : 'unknown'
    }
    this.#text = number => ({ name: ask(name, number), text: ask(text, number) })
    this.call('cuInit', 0)
  }

  /** Where a kernel expects its `index`th argument; null beyond the last one, undefined when the driver cannot say (before CUDA 12.4). */
  parameter(fn: number, index: number): { readonly offset: number; readonly size: number } | null | undefined {
    if (!this.#parameterInfo) return undefined
    const [offset, size]: [number[], number[]] = [[0], [0]]
    const result = this.#parameterInfo(fn, index, offset as never, size as never)
    return result === RESULT.success ? { offset: Number(offset[0]), size: Number(size[0]) } : null
  }

  /** @throws CudaError SY_CUDA_CALL */
  call(name: DriverCall, ...args: Argument[]): void {
    const number = this.#raw[name](...args)
    if (number !== RESULT.success) this.fail(name, number)
  }

  /** The result itself, for calls that may fail in an expected way. */
  ask(name: DriverCall, ...args: Argument[]): number {
    return this.#raw[name](...args)
  }

  /** Gives something back. Where a kernel went wrong before, there is nothing to give back, and that error was told already. */
  release(name: DriverCall, ...args: Argument[]): void {
    const number = this.#raw[name](...args)
    if (number !== RESULT.success && !isContextLost(number)) this.fail(name, number)
  }

  /** Calls a function whose first argument is where its result goes. */
  get(name: DriverCall, ...args: Argument[]): number {
    const out: (number | null)[] = [null]
    this.call(name, out, ...args)
    return Number(out[0])
  }

  /** @throws CudaError always */
  fail(call: string, number: number): never {
    throw new CudaError('SY_CUDA_CALL', { call, number, ...this.#text(number), advice: adviceFor(number) })
  }

  attribute(attribute: number, device: number): number {
    return this.get('cuDeviceGetAttribute', attribute, device)
  }

  /** Text that the driver writes into a buffer: cuDeviceGetName, cuDeviceGetPCIBusId. */
  text(name: DriverCall, device: number): string {
    const bytes = Buffer.alloc(256)
    this.call(name, bytes, bytes.length, device)
    return bytes.toString('utf8', 0, bytes.indexOf(0))
  }

  /** The highest CUDA version the driver knows: "13.0". */
  version(): string {
    const version = this.get('cuDriverGetVersion')
    return `${Math.floor(version / 1000)}.${Math.floor((version % 1000) / 10)}`
  }
}
