// The CPU device: its kernels (native or reference), its packer, its file mappings and the probes of this core.
// It owns no memory and no threads; a rank binds kernels to memory that the node lends.
import { f32View, HostMemoryLender, type MemoryLender, type MemorySpan } from '../memory.js'
import type { Ops, Packer } from '../ops.js'
import { type Addon, loadAddon } from './addon.js'
import { CpuDeviceError } from './errors.js'
import { AlignedMemoryLender } from './lender.js'
import { fileMapper, type MapFileRange, wholeFile } from './mapping.js'
import { NativeOps } from './native-ops.js'
import { NativePacker, ReferencePacker } from './packing.js'
import { referenceOps } from './reference-ops.js'

export { ADDON_PATH, type Addon, loadAddon } from './addon.js'
export { CpuDeviceError } from './errors.js'
export type { MapFileRange } from './mapping.js'
export { NativeOps } from './native-ops.js'
export { NativePacker, ReferencePacker } from './packing.js'
export { referenceOps } from './reference-ops.js'

export interface CpuDeviceOptions {
  /** `auto`: native if they load, else the reference with a warning. */
  readonly kernels?: 'auto' | 'native' | 'reference'
  /** Instruction set by name; default: SWITCHYARD_CPU_ISA, else the best one this processor runs. */
  readonly isa?: string
}

/** Which kernels run, and why: shown by `doctor`. */
export interface KernelChoice {
  readonly kind: 'native' | 'reference'
  /** Instruction set, `none` for the reference. */
  readonly isa: string
  /** Instruction sets that could be chosen. */
  readonly available: readonly string[]
  /** One sentence. */
  readonly reason: string
  /** Set when the reference runs although native kernels were wanted: print it loudly. */
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
  /** A lender whose spans start on cache lines and use large pages: what the node should allocate ranks' memory with. */
  createLender(): MemoryLender
  /** Read bandwidth of this thread in bytes per second, over a span much larger than the caches. */
  readBandwidth(span: MemorySpan): number
  /** Multiply-add rate of this thread in floating-point operations per second; undefined without native kernels. */
  multiplyAddRate(): number | undefined
}

/**
 * Chooses kernels and makes the device.
 * @throws CpuDeviceError SY_DEVICE_NO_NATIVE_KERNELS (kernels: 'native'), SY_DEVICE_UNKNOWN_ISA
 */
export function createCpuDevice(options: CpuDeviceOptions = {}): CpuDevice {
  const wanted = options.kernels ?? 'auto'
  const { addon, missing } = loadAddon()
  if (wanted === 'reference') return referenceDevice(addon, { reason: 'The reference kernels were asked for.' })
  if (!addon) {
    if (wanted === 'native') throw new CpuDeviceError('SY_DEVICE_NO_NATIVE_KERNELS', { reason: missing })
    return referenceDevice(undefined, {
      reason: `Native kernels cannot be used: ${missing}.`,
      warning:
        `No native CPU kernels: ${missing}. Running the plain TypeScript reference, which is 20 to 200 times slower. ` +
        'Run `node scripts/build-kernels.mjs` to build them; it needs g++ or clang++.',
    })
  }
  const available = addon.isas()
  const forced = options.isa ?? process.env['SWITCHYARD_CPU_ISA']
  const isa = forced ? available.indexOf(forced) : available.length - 1
  if (isa < 0) throw new CpuDeviceError('SY_DEVICE_UNKNOWN_ISA', { isa: forced, available })
  const name = available[isa]!
  const why = forced ? 'as asked for' : 'the best this processor runs'
  return device(addon, new NativeOps(addon, isa), new NativePacker(addon, isa), isa, {
    kind: 'native',
    isa: name,
    available,
    reason: `Native kernels for ${name}, ${why}.`,
  })
}

function referenceDevice(addon: Addon | undefined, why: { reason: string; warning?: string }): CpuDevice {
  const choice: KernelChoice = { kind: 'reference', isa: 'none', available: addon?.isas() ?? [], ...why }
  return device(addon, referenceOps, new ReferencePacker(), undefined, choice)
}

function device(
  addon: Addon | undefined,
  ops: Ops,
  packer: Packer,
  isa: number | undefined,
  kernels: KernelChoice,
): CpuDevice {
  const mapFileRange = fileMapper(addon)
  const address = (span: MemorySpan): number => addon!.addressOf(new Uint8Array(span.buffer, span.byteOffset, 1))
  return {
    name: `cpu (${ops.name})`,
    ops,
    packer,
    kernels,
    mapFileRange,
    mapFile: path => wholeFile(mapFileRange, path),
    createLender: () => (addon ? new AlignedMemoryLender(addon) : new HostMemoryLender()),
    readBandwidth: span => (addon ? addon.readBandwidth(address(span), span.byteLength) : plainReadBandwidth(span)),
    multiplyAddRate: () => (addon && isa !== undefined ? addon.multiplyAddRate(isa) : undefined),
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
