// The WebAssembly kernels as TypeScript sees them: one instance per thread over the node's memory. They are compiled from
// the sources of the native ones (kernels/cpu), so operations, argument lists and layouts are those of native-ops.ts.
// Invariant: an instance belongs to one thread; what it binds points into the shared memory by byte offsets.
import { fileURLToPath } from 'node:url'
import { Unreachable } from '../../config/errors.js'
import { CpuDeviceError } from './errors.js'
import type { KernelLibrary } from './native-ops.js'
import { compileKernels, type WasmIsa, wasmIsas, wasmPath } from './wasm-isa.js'
import { belongsTo, createWasmMemory, WASM_PAGE } from './wasm-memory.js'
import { type WasmGlobal, type WasmMemory, type WasmModule, WebAssembly } from './webassembly.js'

/** What the ranks of a node share: made by the main thread, posted to workers as it is. */
export interface WasmNode {
  /** What the module was compiled for. */
  readonly isa: WasmIsa
  readonly module: WasmModule
  readonly memory: WasmMemory
}

/** Exports of kernels/wasm/module.cpp. Addresses are byte offsets as i32: read them with `>>> 0`. */
interface Exports {
  readonly __stack_pointer: WasmGlobal
  start(): number
  grow(bytes: number): number
  take(bytes: number): number
  bind(op: number, numbers: number, length: number): number
  error(): number
  maxRows(bound: number): number
  run(bound: number, rows: number): number
  packMatrix(target: number, numbers: number, bytes: number, scales: number): void
  packVector(target: number, numbers: number, bytes: number, scales: number): void
  readSum(address: number, bytes: number): number
  multiplyAdds(steps: number): number
}

/** More than any kernel's frames, less than the page it lies in. */
const STACK_BYTES = 2 * WASM_PAGE
/** Numbers of the longest argument list, with room. */
const MOST_NUMBERS = 1024

/**
 * Compiles the module of an instruction set (default: the best) and reserves the node's memory.
 * @throws CpuDeviceError SY_DEVICE_UNKNOWN_ISA, SY_DEVICE_NO_WASM_KERNELS, SY_DEVICE_WASM_MEMORY
 */
export function createWasmNode({ isa, path }: { isa?: WasmIsa; path?: string } = {}): WasmNode {
  const available = wasmIsas()
  const chosen = isa ?? available.at(-1)!
  if (!available.includes(chosen)) throw new CpuDeviceError('SY_DEVICE_UNKNOWN_ISA', { isa: chosen, available })
  const file = path ?? wasmPath(chosen)
  try {
    return { isa: chosen, module: compileKernels(file, chosen), memory: createWasmMemory() }
  } catch (error) {
    if (error instanceof CpuDeviceError) throw error
    const shown = file instanceof URL ? fileURLToPath(file) : file
    throw new CpuDeviceError('SY_DEVICE_NO_WASM_KERNELS', { path: shown, reason: reasonOf(error) })
  }
}

const reasonOf = (error: unknown): string => (error instanceof Error ? error.message : String(error))

export class WasmKernels implements KernelLibrary {
  readonly node: WasmNode
  readonly #exports: Exports
  readonly #numbers: number
  readonly #isMine: (buffer: SharedArrayBuffer) => boolean

  constructor(node: WasmNode) {
    this.node = node
    const { module, memory } = node
    let stack: number
    try {
      const instance = new WebAssembly.Instance(module, { env: { memory }, math: { exp: Math.exp, log: Math.log } })
      this.#exports = instance.exports as unknown as Exports
      stack = memory.grow(STACK_BYTES / WASM_PAGE) * WASM_PAGE
      this.#exports.__stack_pointer.value = stack + STACK_BYTES
      if (this.#exports.start() === 0) throw new Error('the memory is full')
    } catch (error) {
      throw new CpuDeviceError('SY_DEVICE_WASM_MEMORY', { reason: reasonOf(error) })
    }
    this.#numbers = this.take(MOST_NUMBERS * 8)
    this.#isMine = belongsTo(memory)
  }

  isas(): string[] {
    return [this.node.isa]
  }

  /** Byte offset of a view of the node's memory. */
  addressOf(view: Uint8Array): number {
    if (!this.#isMine(view.buffer as SharedArrayBuffer))
      throw new Unreachable('WebAssembly kernels reach memory of their own device only: lend it with createLender()')
    return view.byteOffset
  }

  bind(_isa: number, op: number, numbers: Float64Array): (rows: number) => void {
    const bound = this.#exports.bind(op, this.writeNumbers(numbers), numbers.length)
    if (bound === 0) throw new Error(this.#text(this.#exports.error()))
    const most = this.#exports.maxRows(bound)
    const { run } = this.#exports
    return rows => {
      if (!(Number.isInteger(rows) && rows >= 0))
        throw new Unreachable('the number of rows must be an integer from 0 up')
      if (rows > most) throw new Unreachable(`${rows} rows, but the operands' spans hold ${most}`)
      if (rows > 0 && run(bound, rows) !== 0)
        throw new Unreachable('an index read by a kernel (expert, slot, page, position or row) lies outside its table')
    }
  }

  packMatrix(target: number, numbers: Float64Array, bytes: number, scales: number): void {
    this.#exports.packMatrix(target, this.writeNumbers(numbers), bytes, scales)
  }

  packVector(target: number, numbers: Float64Array, bytes: number, scales: number): void {
    this.#exports.packVector(target, this.writeNumbers(numbers), bytes, scales)
  }

  /** Address of `bytes` bytes of memory that this instance keeps. */
  take(bytes: number): number {
    const address = this.#exports.take(bytes) >>> 0
    if (address === 0) throw new CpuDeviceError('SY_DEVICE_WASM_MEMORY', { reason: 'the memory is full' })
    return address
  }

  /** Copies a list to where the module reads it. */
  writeNumbers(numbers: Float64Array): number {
    if (numbers.length > MOST_NUMBERS) throw new Unreachable(`${numbers.length} numbers in an argument list`)
    new Float64Array(this.node.memory.buffer, this.#numbers, MOST_NUMBERS).set(numbers)
    return this.#numbers
  }

  /** Bytes per second of one pass of this thread over the memory. */
  readBandwidth(address: number, bytes: number): number {
    const started = performance.now()
    const sum = this.#exports.readSum(address, bytes)
    const seconds = (performance.now() - started) / 1000
    return Number.isNaN(sum) ? 0 : bytes / seconds
  }

  /** Floating-point operations per second of this thread, operands in registers. */
  multiplyAddRate(): number {
    this.#exports.multiplyAdds(1e6)
    const started = performance.now()
    const done = this.#exports.multiplyAdds(2e6)
    return (done / (performance.now() - started)) * 1000
  }

  #text(address: number): string {
    const bytes = new Uint8Array(this.node.memory.buffer, address >>> 0, 200).slice()
    return new TextDecoder().decode(bytes.subarray(0, bytes.indexOf(0)))
  }
}
