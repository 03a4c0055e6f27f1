// The CPU device: its kernels (native, WebAssembly or reference), its packer, its file mappings and the probes of this core.
// It owns no memory and no threads; a rank binds kernels to memory that the node lends.
import { f32View, HostMemoryLender, hostBuffer, type MemoryLender, type MemorySpan } from '../memory.js'
import type { Ops, Packer } from '../ops.js'
import { type Addon, loadAddon } from './addon.js'
import { CpuDeviceError } from './errors.js'
import { AlignedMemoryLender } from './lender.js'
import { fileMapper, type MapFileRange, wholeFile } from './mapping.js'
import { type KernelLibrary, NativeOps } from './native-ops.js'
import { NativePacker, ReferencePacker } from './packing.js'
import { referenceOps } from './reference-ops.js'
import { isWasmIsa, wasmIsas } from './wasm-isa.js'
import { createWasmNode, WasmKernels, type WasmNode } from './wasm-kernels.js'
import { refuseBeyondLimit, WASM_LENDABLE, WasmMemoryLender } from './wasm-memory.js'
import { WasmPacker } from './wasm-packer.js'

export { ADDON_PATH, type Addon, loadAddon } from './addon.js'
export { CpuDeviceError } from './errors.js'
export type { MapFileRange } from './mapping.js'
export { NativeOps } from './native-ops.js'
export { NativePacker, ReferencePacker } from './packing.js'
export { referenceOps } from './reference-ops.js'
export type { WasmNode } from './wasm-kernels.js'
export { WASM_LENDABLE } from './wasm-memory.js'

export interface CpuDeviceOptions {
  /** `auto`: native if they load, else WebAssembly, else the reference, with a warning. */
  readonly kernels?: 'auto' | KernelKind
  /** In a worker: the module and memory that the main thread's device (`wasmNode`) made for `wasm` kernels. */
  readonly wasmNode?: WasmNode
  /**
   * Instruction set by name; default: SWITCHYARD_CPU_ISA, else the best one this processor and this Node run. WebAssembly kernels
   * take the names `simd128` and `relaxed-simd` and pass over those of native ones.
   */
  readonly isa?: string
}

export type KernelKind = 'native' | 'wasm' | 'reference'

/** Which kernels run, and why: shown by `doctor`. */
export interface KernelChoice {
  readonly kind: KernelKind
  /** Instruction set, `none` for the reference. */
  readonly isa: string
  /** Instruction sets that could be chosen. */
  readonly available: readonly string[]
  /** One sentence. */
  readonly reason: string
  /** Set when slower kernels run because native ones cannot: print it loudly. */
  readonly warning?: string
}

export interface CpuDevice {
  readonly name: string
  readonly ops: Ops
  readonly packer: Packer
  readonly kernels: KernelChoice
  /** Bytes of a file range; see mapping.ts. @throws CpuDeviceError SY_DEVICE_UNREADABLE_FILE */
  readonly mapFileRange: MapFileRange
  /** The whole file, below 4 GiB. */
  mapFile(path: string): Uint8Array
  /**
   * A lender whose spans start on cache lines: what the node allocates ranks' memory with. Native: in large pages. The
   * kernels of `wasm` reach no other memory. Its lend() throws CpuDeviceError SY_DEVICE_WASM_MEMORY_FULL.
   */
  createLender(): MemoryLender
  /** Bytes that lenders of this device may lend in all; infinite but for `wasm`. */
  readonly memoryLimit: number
  /** Refuses early what no lender could lend. @throws CpuDeviceError SY_DEVICE_WASM_MEMORY_FULL */
  requireMemory(bytes: number, purpose: string): void
  /** What the devices of worker threads need to share this one's memory: plain data to post. Null but for `wasm`. */
  readonly wasmNode: WasmNode | null
  /** Read bandwidth of this thread in bytes per second, over a span much larger than the caches. */
  readBandwidth(span: MemorySpan): number
  /** Multiply-add rate of this thread in floating-point operations per second; undefined for the reference. */
  multiplyAddRate(): number | undefined
}

/**
 * Chooses kernels and makes the device.
 * @throws CpuDeviceError SY_DEVICE_NO_NATIVE_KERNELS (kernels: 'native'), SY_DEVICE_NO_WASM_KERNELS and
 * SY_DEVICE_WASM_MEMORY (kernels: 'wasm'), SY_DEVICE_UNKNOWN_ISA
 */
export function createCpuDevice(options: CpuDeviceOptions = {}): CpuDevice {
  const wanted = options.kernels ?? 'auto'
  const { addon, missing } = loadAddon()
  const isa = options.isa ?? process.env['SWITCHYARD_CPU_ISA']
  if (wanted === 'reference') return referenceDevice(addon, { reason: 'The reference kernels were asked for.' })
  if (wanted === 'wasm')
    return wasmDevice(addon, options.wasmNode ?? nodeFor(isa), { reason: 'WebAssembly kernels were asked for.' })
  if (addon) return nativeDevice(addon, isa)
  if (wanted === 'native') throw new CpuDeviceError('SY_DEVICE_NO_NATIVE_KERNELS', { reason: missing })
  return deviceWithoutAddon(missing, isa)
}

function nativeDevice(addon: Addon, forced: string | undefined): CpuDevice {
  const available = addon.isas()
  const isa = forced ? available.indexOf(forced) : available.length - 1
  if (isa < 0) throw new CpuDeviceError('SY_DEVICE_UNKNOWN_ISA', { isa: forced, available })
  const name = available[isa]!
  const why = forced ? 'as asked for' : 'the best this processor runs'
  const reason = `Native kernels for ${name}, ${why}.`
  return {
    ...plainDevice(addon, new NativeOps(addon, isa), { kind: 'native', isa: name, available, reason }),
    packer: new NativePacker(addon, isa),
    multiplyAddRate: () => addon.multiplyAddRate(isa),
  }
}

const BUILD_HINT = 'Run `node scripts/build-kernels.mjs` to build them; it needs g++ or clang++.'

const nodeFor = (isa: string | undefined): WasmNode => createWasmNode(isWasmIsa(isa) ? { isa } : {})

/** WebAssembly when it can be, else the reference; both with a warning. */
function deviceWithoutAddon(missing: string, isa: string | undefined): CpuDevice {
  let node: WasmNode
  try {
    node = nodeFor(isa)
  } catch (error) {
    if (!(error instanceof CpuDeviceError)) throw error
    return referenceDevice(undefined, {
      reason: `Native kernels cannot be used: ${missing}. ${error.message}`,
      warning:
        `No native CPU kernels: ${missing}. ${error.message} Running the plain TypeScript reference, which is 20 to 200 ` +
        `times slower. ${BUILD_HINT}`,
    })
  }
  return wasmDevice(undefined, node, {
    reason: `WebAssembly kernels, because native ones cannot be used: ${missing}.`,
    warning:
      `No native CPU kernels: ${missing}. Running WebAssembly kernels: prompts take 3 to 5 times as long, and a model ` +
      `with all its caches must fit 4 GiB. ${BUILD_HINT}`,
  })
}

function wasmDevice(addon: Addon | undefined, node: WasmNode, why: { reason: string; warning?: string }): CpuDevice {
  const kernels = new WasmKernels(node)
  return {
    ...plainDevice(addon, new NativeOps(kernels, 0, 'wasm'), {
      kind: 'wasm',
      isa: node.isa,
      available: wasmIsas(),
      ...why,
    }),
    packer: new WasmPacker(kernels),
    createLender: () => new WasmMemoryLender(node.memory),
    memoryLimit: WASM_LENDABLE,
    requireMemory: refuseBeyondLimit,
    wasmNode: node,
    readBandwidth: span => kernels.readBandwidth(addressIn(kernels, span), span.byteLength),
    multiplyAddRate: () => kernels.multiplyAddRate(),
  }
}

function referenceDevice(addon: Addon | undefined, why: { reason: string; warning?: string }): CpuDevice {
  return plainDevice(addon, referenceOps, { kind: 'reference', isa: 'none', available: addon?.isas() ?? [], ...why })
}

const addressIn = (library: KernelLibrary, span: MemorySpan): number =>
  library.addressOf(new Uint8Array(hostBuffer(span), span.byteOffset, 1))

/** A device that packs in TypeScript and takes memory as it comes; the addon helps with files and memory if it is there. */
function plainDevice(addon: Addon | undefined, ops: Ops, kernels: KernelChoice): CpuDevice {
  const mapFileRange = fileMapper(addon)
  return {
    name: `cpu (${ops.name})`,
    ops,
    packer: new ReferencePacker(),
    kernels,
    mapFileRange,
    mapFile: path => wholeFile(mapFileRange, path),
    createLender: () => (addon ? new AlignedMemoryLender(addon) : new HostMemoryLender()),
    memoryLimit: Number.POSITIVE_INFINITY,
    requireMemory: () => {},
    wasmNode: null,
    readBandwidth: span =>
      addon ? addon.readBandwidth(addressIn(addon, span), span.byteLength) : plainReadBandwidth(span),
    multiplyAddRate: () => undefined,
  }
}

/** What JavaScript itself can read: the fair yardstick for the reference. */
function plainReadBandwidth(span: MemorySpan): number {
  const view = f32View(span)
  const started = performance.now()
  let sum = 0
  for (let i = 0; i < view.length; i++) sum += view[i]!
  const seconds = (performance.now() - started) / 1000
  return Number.isNaN(sum) ? 0 : span.byteLength / seconds
}
