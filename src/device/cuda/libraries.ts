// Finds and loads NVIDIA's libraries through koffi, an optional dependency. Nothing here throws when something is missing:
// the answer says what is missing and how to get it, for `--device cuda` and for `switchyard doctor`.
import { existsSync, readdirSync } from 'node:fs'
import { createRequire } from 'node:module'
import { delimiter, dirname, join } from 'node:path'
import type koffiModule from 'koffi'
import type { LibraryHandle } from 'koffi'
import { CudaError } from './errors.js'

export type Koffi = typeof koffiModule

/** What is looked for: file names best first, and how to get it. */
export const LIBRARIES = {
  driver: {
    title: 'CUDA driver',
    names: ['libcuda.so.1'],
    fix: "install NVIDIA's driver for this GPU; in a container, start it with the NVIDIA container toolkit (--gpus all)",
  },
  nvrtc: {
    title: 'NVRTC (compiles kernels)',
    names: ['libnvrtc.so.13', 'libnvrtc.so.12'],
    fix: 'install the CUDA toolkit, or only its package cuda-nvrtc-13-0 (pip: nvidia-cuda-nvrtc), and name its folder in SWITCHYARD_CUDA_PATH',
  },
  cublaslt: {
    title: 'cuBLASLt (dense products)',
    names: ['libcublasLt.so.13', 'libcublasLt.so.12'],
    fix: 'install the CUDA toolkit, or only its package libcublas-13-0 (pip: nvidia-cublas), and name its folder in SWITCHYARD_CUDA_PATH',
  },
} as const

/** Only benchmarks ask for it, to stand beside. */
const NCCL = { names: ['libnccl.so.2'] } as const

export type LibraryKind = keyof typeof LIBRARIES

export interface FoundLibrary {
  readonly kind: LibraryKind
  /** File that was loaded; null when none could be. */
  readonly path: string | null
  readonly handle: LibraryHandle | null
  /** Why the last candidate did not load; empty when one did. */
  readonly reason: string
}

export interface CudaLibraries {
  readonly koffi: Koffi
  readonly driver: LibraryHandle
  readonly nvrtc: LibraryHandle
  readonly cublaslt: LibraryHandle
}

export interface LibrarySearch {
  readonly koffi: Koffi | null
  /** Why koffi did not load; empty when it did. */
  readonly koffiReason: string
  readonly found: Readonly<Record<LibraryKind, FoundLibrary>>
}

type Environment = Readonly<Record<string, string | undefined>>

/**
 * Folders to look in, in order: those named by SWITCHYARD_CUDA_PATH, CUDA_HOME and CUDA_PATH, the loader's own path (''),
 * the usual places of toolkit and driver, and Python environments on PATH that carry NVIDIA's packages.
 * @param list names in a folder, empty when there is none
 */
export function searchFolders(env: Environment, list: (folder: string) => readonly string[] = namesIn): string[] {
  const named = ['SWITCHYARD_CUDA_PATH', 'CUDA_HOME', 'CUDA_PATH'].flatMap(name =>
    (env[name] ?? '').split(delimiter).filter(path => path !== ''),
  )
  const toolkits = list('/usr/local')
    .filter(name => /^cuda(-[\d.]+)?$/.test(name))
    .sort((a, b) => b.localeCompare(a, 'en', { numeric: true }))
    .map(name => `/usr/local/${name}`)
  const python = (env['PATH'] ?? '')
    .split(delimiter)
    .filter(path => path !== '')
    .map(dirname)
  if (env['VIRTUAL_ENV']) python.unshift(env['VIRTUAL_ENV'])
  const folders = [
    ...named.flatMap(path => [path, join(path, 'lib64'), join(path, 'lib')]),
    '',
    ...toolkits.flatMap(path => [join(path, 'lib64'), join(path, 'lib')]),
    '/usr/local/nvidia/lib64',
    '/usr/lib/wsl/lib',
    ...python.flatMap(path => packageFolders(path, list)),
  ]
  return [...new Set(folders)]
}

/** `lib` folders of NVIDIA's Python packages under an environment's root. */
const packageFolders = (root: string, list: (folder: string) => readonly string[]): string[] =>
  list(join(root, 'lib'))
    .filter(name => name.startsWith('python3'))
    .map(name => join(root, 'lib', name, 'site-packages', 'nvidia'))
    .flatMap(nvidia => list(nvidia).map(name => join(nvidia, name, 'lib')))

function namesIn(folder: string): string[] {
  try {
    return readdirSync(folder)
  } catch {
    return []
  }
}

/** Looks for everything; loads what is there. Dynamic libraries are loaded once a process however often this is called. */
export function searchLibraries(env: Environment = process.env): LibrarySearch {
  const { koffi, reason } = loadKoffi(env)
  const folders = searchFolders(env)
  const look = (kind: LibraryKind): FoundLibrary =>
    koffi === null
      ? { kind, path: null, handle: null, reason }
      : { kind, ...loadFirst(koffi, LIBRARIES[kind].names, folders) }
  return {
    koffi,
    koffiReason: reason,
    found: { driver: look('driver'), nvrtc: look('nvrtc'), cublaslt: look('cublaslt') },
  }
}

/** @returns null where there is none */
export function findNccl(env: Environment = process.env): { koffi: Koffi; handle: LibraryHandle } | null {
  const { koffi } = loadKoffi(env)
  const handle = koffi === null ? null : loadFirst(koffi, NCCL.names, searchFolders(env)).handle
  return koffi !== null && handle !== null ? { koffi, handle } : null
}

/** @throws CudaError SY_CUDA_UNAVAILABLE naming everything that is missing and how to get it */
export function requireLibraries(search: LibrarySearch = searchLibraries()): CudaLibraries {
  const { koffi, found } = search
  const { driver, nvrtc, cublaslt } = found
  if (koffi === null || driver.handle === null || nvrtc.handle === null || cublaslt.handle === null) {
    const { missing, fix } = whatIsMissing(search)
    throw new CudaError('SY_CUDA_UNAVAILABLE', { missing, fix })
  }
  return { koffi, driver: driver.handle, nvrtc: nvrtc.handle, cublaslt: cublaslt.handle }
}

/** One sentence each; empty when everything is there. */
export function whatIsMissing({ koffi, koffiReason, found }: LibrarySearch): { missing: string; fix: string } {
  if (koffi === null)
    return { missing: koffiReason, fix: 'Run `npm install koffi@3.3.4` where Switchyard is installed' }
  const absent = Object.values(found).filter(library => library.handle === null)
  const [first] = absent
  if (first === undefined) return { missing: '', fix: '' }
  // Without a driver nothing else matters: the machine has no usable GPU.
  const told = first.kind === 'driver' ? [first] : absent
  const fixes = told.map(({ kind }) => LIBRARIES[kind].fix).join('; ')
  return {
    missing: told.map(({ kind, reason }) => `${LIBRARIES[kind].names[0]} was not found (${reason})`).join('; '),
    fix: fixes.charAt(0).toUpperCase() + fixes.slice(1),
  }
}

function loadKoffi(env: Environment): { koffi: Koffi | null; reason: string } {
  if (env['SWITCHYARD_NO_CUDA'] === '1') return { koffi: null, reason: 'SWITCHYARD_NO_CUDA=1 hides GPUs' }
  try {
    return { koffi: createRequire(import.meta.url)('koffi') as Koffi, reason: '' }
  } catch (error) {
    return { koffi: null, reason: `the optional dependency koffi does not load (${firstLine(error)})` }
  }
}

function loadFirst(koffi: Koffi, names: readonly string[], folders: readonly string[]): Omit<FoundLibrary, 'kind'> {
  let reason = 'in no folder of the search'
  for (const name of names) {
    for (const folder of folders) {
      const path = folder === '' ? name : join(folder, name)
      if (folder !== '' && !existsSync(path)) continue
      try {
        if (name.startsWith('libnvrtc') && folder !== '') loadBuiltins(koffi, folder)
        return { path, handle: koffi.load(path), reason: '' }
      } catch (error) {
        if (folder !== '') reason = firstLine(error)
      }
    }
  }
  return { path: null, handle: null, reason }
}

/** Loaded for others' sake. A handle that is collected unloads its library, so these are held as long as the thread lives. */
const companions = new Map<string, LibraryHandle>()

/** NVRTC asks the loader for its library of built-in functions by bare name: outside the loader's path it must be there already. */
function loadBuiltins(koffi: Koffi, folder: string): void {
  for (const name of namesIn(folder).filter(file => /^libnvrtc-builtins\.so\.[\d.]+$/.test(file))) {
    const path = join(folder, name)
    try {
      if (!companions.has(path)) companions.set(path, koffi.load(path))
    } catch {
      // Of another version than this NVRTC; a missing one is named when it compiles.
    }
  }
}

const firstLine = (error: unknown): string => (error instanceof Error ? error.message : String(error)).split('\n')[0]!
