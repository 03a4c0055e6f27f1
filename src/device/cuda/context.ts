// One GPU in this thread: its primary context, what it is, memory taken and copied synchronously. The primary context is
// one for the whole process, so addresses made here are good in every thread; streams, events and modules stay with theirs.

import { ATTRIBUTE, CudaDriver, RESULT } from './driver.js'
import { CudaError } from './errors.js'
import { hostAddress } from './host-address.js'
import { type CudaLibraries, requireLibraries } from './libraries.js'
import { encodeTensorMap } from './tensor-map.js'
import type { CudaProperties, TensorMapSpec } from './types.js'

/** Kernels use bf16 conversions, mma and cp.async of compute capability 8.0. */
const OLDEST_CAPABILITY = 80

export class CudaContext implements Disposable {
  readonly driver: CudaDriver
  readonly libraries: CudaLibraries
  readonly properties: CudaProperties
  /** "cuda:0", as in DeviceMemory. */
  readonly device: string
  readonly #handle: number
  readonly #borrowed: boolean
  /** GPUs whose contexts this one keeps alive, as often as it does. */
  readonly #peers: number[] = []

  /**
   * @param borrowed somebody else of this process holds the context for longer. A thread that may be ended from outside holds nothing
   *   itself: with its context goes all that it took, streams and graphs and memory
   * @throws CudaError SY_CUDA_UNAVAILABLE, SY_CUDA_NO_DEVICE, SY_CUDA_OLD_DEVICE
   */
  constructor(ordinal: number, libraries: CudaLibraries = requireLibraries(), borrowed = false) {
    this.libraries = libraries
    this.#borrowed = borrowed
    this.driver = new CudaDriver(libraries.driver)
    const count = this.driver.get('cuDeviceGetCount')
    if (!(ordinal >= 0 && ordinal < count)) throw new CudaError('SY_CUDA_NO_DEVICE', { ordinal, count })
    this.properties = readProperties(this.driver, ordinal)
    const { name, capability } = this.properties
    if (capability < OLDEST_CAPABILITY)
      throw new CudaError('SY_CUDA_OLD_DEVICE', { ordinal, name, capability: capability / 10 })
    this.device = `cuda:${ordinal}`
    this.#handle = this.driver.get('cuDevicePrimaryCtxRetain', this.#deviceHandle)
    if (borrowed) this.driver.release('cuDevicePrimaryCtxRelease_v2', this.#deviceHandle)
    this.makeCurrent()
  }

  get #deviceHandle(): number {
    return this.driver.get('cuDeviceGet', this.properties.ordinal)
  }

  /** Calls of this thread now mean this GPU. Needed only in a thread that uses several. */
  makeCurrent(): void {
    this.driver.call('cuCtxSetCurrent', this.#handle)
  }

  /** Waits for everything queued on this GPU by this process. */
  synchronize(): void {
    this.makeCurrent()
    this.driver.call('cuCtxSynchronize')
  }

  /** Whether a stream of this process has work left. One whose work went wrong has none. */
  isBusy(stream: number): boolean {
    // Neither call counts as failed where a kernel went wrong before.
    this.driver.ask('cuCtxSetCurrent', this.#handle)
    return this.driver.ask('cuStreamQuery', stream) === RESULT.notReady
  }

  memory(): { free: number; total: number } {
    this.makeCurrent()
    const free: (number | null)[] = [null]
    const total: (number | null)[] = [null]
    this.driver.call('cuMemGetInfo_v2', free, total)
    return { free: Number(free[0]), total: Number(total[0]) }
  }

  /**
   * Takes memory of the GPU, zeroed. For arenas and scratch at start; never while ranks run.
   * @throws CudaError SY_CUDA_OUT_OF_MEMORY
   */
  allocate(bytes: number, purpose: string): number {
    this.makeCurrent()
    const out: (number | null)[] = [null]
    const result = this.driver.ask('cuMemAlloc_v2', out, bytes)
    if (result === RESULT.outOfMemory) throw this.#outOfMemory(bytes, purpose)
    if (result !== RESULT.success) this.driver.fail('cuMemAlloc_v2', result)
    const address = Number(out[0])
    this.driver.call('cuMemsetD8_v2', address, 0, bytes)
    this.#finishDefaultStream()
    return address
  }

  release(address: number): void {
    this.makeCurrent()
    this.driver.release('cuMemFree_v2', address)
  }

  /** Copies bytes of the host to the GPU and returns when they are there. */
  upload(address: number, bytes: ArrayBufferView): void {
    if (bytes.byteLength === 0) return
    this.makeCurrent()
    this.driver.call('cuMemcpyHtoD_v2', address, hostAddress(this.libraries.koffi, bytes), bytes.byteLength)
    this.#finishDefaultStream()
  }

  /** Fills a view of the host from the GPU. Work on streams is not waited for: synchronise first. */
  download(bytes: ArrayBufferView, address: number): void {
    if (bytes.byteLength === 0) return
    this.makeCurrent()
    this.driver.call('cuMemcpyDtoH_v2', hostAddress(this.libraries.koffi, bytes), address, bytes.byteLength)
  }

  /** Lets kernels and copies of this GPU reach the memory of another. @returns whether the two can */
  enablePeer(ordinal: number): boolean {
    const peer = this.driver.get('cuDeviceGet', ordinal)
    if (this.driver.get('cuDeviceCanAccessPeer', this.#deviceHandle, peer) === 0) return false
    const context = this.driver.get('cuDevicePrimaryCtxRetain', peer)
    this.#peers.push(peer)
    this.makeCurrent()
    const result = this.driver.ask('cuCtxEnablePeerAccess', context, 0)
    if (result !== RESULT.success && result !== RESULT.peerAlreadyEnabled)
      this.driver.fail('cuCtxEnablePeerAccess', result)
    return true
  }

  /** @throws CudaError SY_CUDA_CALL when address, sizes or box do not suit each other */
  tensorMap(spec: TensorMapSpec): Uint8Array {
    this.makeCurrent()
    return encodeTensorMap(this.driver, this.libraries.koffi, spec)
  }

  [Symbol.dispose](): void {
    for (const peer of this.#peers.splice(0)) this.driver.release('cuDevicePrimaryCtxRelease_v2', peer)
    if (!this.#borrowed) this.driver.release('cuDevicePrimaryCtxRelease_v2', this.#deviceHandle)
  }

  /** Fills, and copies from plain memory, may return before they end, and our streams do not wait for the default stream. */
  #finishDefaultStream(): void {
    this.driver.call('cuStreamSynchronize', 0)
  }

  #outOfMemory(bytes: number, purpose: string): CudaError {
    const { free, total } = this.memory()
    const gib = (value: number): string => (value / 2 ** 30).toFixed(2)
    const { ordinal } = this.properties
    return new CudaError('SY_CUDA_OUT_OF_MEMORY', {
      purpose,
      needed: gib(bytes),
      ordinal,
      free: gib(free),
      total: gib(total),
    })
  }
}

/** What the driver says about a GPU; needs no context. */
export function readProperties(driver: CudaDriver, ordinal: number): CudaProperties {
  const device = driver.get('cuDeviceGet', ordinal)
  const read = (attribute: keyof typeof ATTRIBUTE): number => driver.attribute(ATTRIBUTE[attribute], device)
  return {
    ordinal,
    name: driver.text('cuDeviceGetName', device),
    capability: read('capabilityMajor') * 10 + read('capabilityMinor'),
    sms: read('sms'),
    sharedBytesPerBlock: read('sharedBytesPerBlock'),
    sharedBytesPerSm: read('sharedBytesPerSm'),
    l2Bytes: read('l2Bytes'),
    memoryBytes: driver.get('cuDeviceTotalMem_v2', device),
  }
}
