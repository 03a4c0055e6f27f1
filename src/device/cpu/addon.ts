// The native addon as TypeScript sees it, and where it comes from. Loading never throws: when the addon is missing the
// answer says why, so that the caller can fall back loudly. Node caches the module; nothing is kept here.
import { existsSync } from 'node:fs'
import { createRequire } from 'node:module'
import { fileURLToPath } from 'node:url'

/** Must equal INTERFACE_VERSION of kernels/cpu/addon.h: the numbers of a bind mean the same on both sides. */
const INTERFACE_VERSION = 1

/** The functions of build/switchyard_kernels.node (kernels/cpu/addon.cpp and memory.cpp). */
export interface Addon {
  readonly interfaceVersion: number
  /** Instruction sets this processor runs, worst first; their indices are the `isa` arguments below. */
  isas(): string[]
  /** Binds operation number `op` to its arguments (see native-ops.ts). Throws when operands leave their spans. */
  bind(isa: number, op: number, numbers: Float64Array): (rows: number) => void
  packMatrix(isa: number, numbers: Float64Array, bytes: Uint8Array, scales: Float32Array | undefined): void
  packVector(isa: number, numbers: Float64Array, bytes: Uint8Array, scales: Float32Array | undefined): void
  /** Address of the first byte of a view, exact as a double. */
  addressOf(view: Uint8Array): number
  /** Read-only mapping of `length` bytes of a file from `offset` on; unmapped when the buffer is collected. */
  mapFile(path: string, offset: number, length: number): ArrayBuffer
  /** Asks for 2 MiB pages behind `bytes` from `address` on; true when the system agreed. */
  adviseHugePages(address: number, bytes: number): boolean
  /** Bytes per second of one pass of this thread over the memory. */
  readBandwidth(address: number, bytes: number): number
  /** Floating-point operations per second of this thread, operands in registers. Takes some 10 ms. */
  multiplyAddRate(isa: number): number
}

export type LoadedAddon =
  | { readonly addon: Addon; readonly missing?: undefined }
  | { readonly addon?: undefined; readonly missing: string }

/** Where the build script puts the addon: `build/` of the package, from `src/` and `dist/` alike. */
export const ADDON_PATH = fileURLToPath(new URL('../../../build/switchyard_kernels.node', import.meta.url))

/** Loads the addon, or says in half a sentence why it cannot be used. */
export function loadAddon(path: string = ADDON_PATH): LoadedAddon {
  if (process.env['SWITCHYARD_NO_ADDON'] === '1') return { missing: 'SWITCHYARD_NO_ADDON=1 hides them' }
  if (!existsSync(path)) return { missing: `${path} does not exist (it is built by scripts/build-kernels.mjs)` }
  try {
    const addon = createRequire(import.meta.url)(path) as Addon
    if (addon.interfaceVersion !== INTERFACE_VERSION)
      return { missing: `${path} was built from other sources (run node scripts/build-kernels.mjs)` }
    if (addon.isas().length === 0) return { missing: 'the addon has no kernels for this processor' }
    return { addon }
  } catch (error) {
    return { missing: `${path} does not load: ${error instanceof Error ? error.message : String(error)}` }
  }
}
