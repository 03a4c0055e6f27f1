// What this machine offers for `--device cuda`: libraries, driver, GPUs and the links between them. Throws nothing: a part
// that cannot be asked is told in words.
import { cacheFolder } from './compile-cache.js'
import { readProperties } from './context.js'
import { CudaDriver, P2P_ATTRIBUTE } from './driver.js'
import { LIBRARIES, type LibraryKind, type LibrarySearch, searchLibraries, whatIsMissing } from './libraries.js'
import { Nvrtc } from './nvrtc.js'
import type { CudaProperties } from './types.js'

export interface CudaReport {
  /** Everything that `--device cuda` needs is there. */
  readonly usable: boolean
  /** Half a sentence; empty when usable. */
  readonly missing: string
  /** How to get it; empty when usable. */
  readonly fix: string
  readonly libraries: readonly {
    readonly kind: LibraryKind
    readonly title: string
    /** File that loads, or null. */
    readonly path: string | null
    /** How to get it; empty when found. */
    readonly fix: string
  }[]
  /** CUDA version that the driver knows, "13.0"; null without a driver. */
  readonly driver: string | null
  readonly nvrtc: string | null
  readonly gpus: readonly CudaProperties[]
  /** Ordered pairs of GPUs. */
  readonly links: readonly CudaLink[]
  /** Where compiled kernels are kept. */
  readonly cache: string
}

export interface CudaLink {
  readonly from: number
  readonly to: number
  /** Kernels of `from` can read and write the memory of `to`. */
  readonly access: boolean
  /** Atomics over the link are done where the memory is: NVLink, not PCIe. */
  readonly nativeAtomics: boolean
  /** The driver's order of links, 0 the fastest. */
  readonly rank: number
}

export function examineCuda(
  env: Readonly<Record<string, string | undefined>> = process.env,
  search: LibrarySearch = searchLibraries(env),
): CudaReport {
  const { found } = search
  const libraries = Object.values(found).map(({ kind, path }) => ({
    kind,
    title: LIBRARIES[kind].title,
    path,
    fix: path === null ? LIBRARIES[kind].fix : '',
  }))
  const absent = whatIsMissing(search)
  const machine = found.driver.handle === null ? NOTHING : askDriver(found.driver.handle)
  const missing = absent.missing || machine.missing
  return {
    usable: missing === '',
    missing,
    fix: absent.missing ? absent.fix : machine.fix,
    libraries,
    driver: machine.driver,
    nvrtc: found.nvrtc.handle === null ? null : versionOf(found.nvrtc.handle),
    gpus: machine.gpus,
    links: machine.links,
    cache: cacheFolder(env),
  }
}

function versionOf(nvrtc: ConstructorParameters<typeof Nvrtc>[0]): string {
  try {
    return new Nvrtc(nvrtc).version
  } catch {
    return 'unknown'
  }
}

interface Machine {
  readonly driver: string | null
  readonly gpus: CudaProperties[]
  readonly links: CudaLink[]
  readonly missing: string
  readonly fix: string
}

const NOTHING: Machine = { driver: null, gpus: [], links: [], missing: '', fix: '' }

function askDriver(library: ConstructorParameters<typeof CudaDriver>[0]): Machine {
  try {
    const driver = new CudaDriver(library)
    const count = driver.get('cuDeviceGetCount')
    const ordinals = Array.from({ length: count }, (_, ordinal) => ordinal)
    const gpus = ordinals.map(ordinal => readProperties(driver, ordinal))
    const old = gpus.length > 0 && gpus.every(({ capability }) => capability < 80)
    const links = ordinals.flatMap(from => ordinals.filter(to => to !== from).map(to => readLink(driver, from, to)))
    const none = { missing: 'the driver shows no GPU', fix: 'check `nvidia-smi` and CUDA_VISIBLE_DEVICES' }
    const tooOld = { missing: 'no GPU has compute capability 8.0 or later', fix: 'use an Ampere or later GPU' }
    const problem = count === 0 ? none : old ? tooOld : { missing: '', fix: '' }
    return { driver: driver.version(), gpus, links, ...problem }
  } catch (error) {
    // A driver library without a GPU, or of another version than the kernel module, fails at its first call.
    const missing = error instanceof Error ? error.message : String(error)
    return {
      ...NOTHING,
      missing,
      fix: 'check that `nvidia-smi` runs, and update or reinstall the driver if it does not',
    }
  }
}

function readLink(driver: CudaDriver, from: number, to: number): CudaLink {
  const handles = [driver.get('cuDeviceGet', from), driver.get('cuDeviceGet', to)] as const
  const ask = (attribute: number): number => driver.get('cuDeviceGetP2PAttribute', attribute, ...handles)
  const access = driver.get('cuDeviceCanAccessPeer', ...handles) === 1
  return {
    from,
    to,
    access,
    nativeAtomics: access && ask(P2P_ATTRIBUTE.nativeAtomics) === 1,
    rank: ask(P2P_ATTRIBUTE.performanceRank),
  }
}
