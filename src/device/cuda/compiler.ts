// From a file of kernels/cuda to machine code for one GPU: sources, options, cache, NVRTC.
import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { CompileCache, cacheKey, collectSources } from './compile-cache.js'
import type { Nvrtc } from './nvrtc.js'
import type { KernelOptions } from './types.js'

/** kernels/cuda of the package, from `src/` and `dist/` alike. */
export const KERNEL_FOLDER = fileURLToPath(new URL('../../../kernels/cuda', import.meta.url))

/** Files whose instructions exist on sm_90a only. */
export const isHopperOnly = (file: string): boolean => file.endsWith('_sm90.cu')

/** Hopper's own instructions (wgmma) need the `a` architecture, which no other GPU runs. */
export const architectureOf = (capability: number): string => (capability === 90 ? 'sm_90a' : `sm_${capability}`)

/** Options that nvcc and NVRTC both understand, without the architecture and the include folder. */
export const COMMON_OPTIONS = ['-std=c++17', '-lineinfo'] as const

/** Functions that say neither __host__ nor __device__ are for the GPU: what nvcc does with constexpr ones by itself. */
const NVRTC_OPTIONS = ['-default-device'] as const

export function compileOptions(capability: number, { defines = {} }: KernelOptions = {}): string[] {
  const macros = Object.keys(defines)
    .sort()
    .map(name => `-D${name}=${defines[name]}`)
  return [`--gpu-architecture=${architectureOf(capability)}`, ...COMMON_OPTIONS, ...macros]
}

export class KernelCompiler {
  readonly #nvrtc: Nvrtc
  readonly #capability: number
  readonly #cache: CompileCache
  readonly #folder: string

  constructor(nvrtc: Nvrtc, capability: number, cache: CompileCache = new CompileCache(), folder = KERNEL_FOLDER) {
    this.#nvrtc = nvrtc
    this.#capability = capability
    this.#cache = cache
    this.#folder = folder
  }

  /** @throws CudaError SY_CUDA_COMPILE */
  compile(file: string, options: KernelOptions = {}): Uint8Array {
    const sources = collectSources(file, name => readFileSync(join(this.#folder, name), 'utf8'))
    const flags = compileOptions(this.#capability, options)
    const key = cacheKey(sources, flags, `nvrtc ${this.#nvrtc.version}`)
    const label = `${file.replace(/\.cu$/, '')}-${architectureOf(this.#capability)}`
    return this.#cache.get(label, key, () =>
      this.#nvrtc.compile(sources[0]!.text, file, [...flags, ...NVRTC_OPTIONS, `-I${this.#folder}`]),
    )
  }
}
