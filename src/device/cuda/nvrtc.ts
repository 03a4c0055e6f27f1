// NVRTC, CUDA's run-time compiler: source in, machine code of one architecture out.
import type { LibraryHandle } from 'koffi'
import { CudaError } from './errors.js'

type Call = (...args: unknown[]) => number

const HANDLE = 'size_t'
const SIGNATURES = {
  nvrtcVersion: ['_Out_ int*', '_Out_ int*'],
  nvrtcCreateProgram: ['_Out_ size_t*', 'str', 'str', 'int', HANDLE, HANDLE],
  nvrtcDestroyProgram: ['_Inout_ size_t*'],
  nvrtcCompileProgram: [HANDLE, 'int', 'const char**'],
  nvrtcGetProgramLogSize: [HANDLE, '_Out_ size_t*'],
  nvrtcGetProgramLog: [HANDLE, 'void*'],
  nvrtcGetCUBINSize: [HANDLE, '_Out_ size_t*'],
  nvrtcGetCUBIN: [HANDLE, 'void*'],
} as const

const COMPILATION_FAILED = 6

export class Nvrtc {
  readonly #call = {} as Record<keyof typeof SIGNATURES, Call>
  readonly #text: (number: number) => string
  /** "13.0" */
  readonly version: string

  constructor(library: LibraryHandle) {
    for (const [name, types] of Object.entries(SIGNATURES))
      this.#call[name as keyof typeof SIGNATURES] = library.func(name, 'int', [...types])
    this.#text = library.func('nvrtcGetErrorString', 'str', ['int'])
    const major: (number | null)[] = [null]
    const minor: (number | null)[] = [null]
    this.#checked('nvrtcVersion', major, minor)
    this.version = `${major[0]}.${minor[0]}`
  }

  /**
   * @param file for messages
   * @param options as on the command line: --gpu-architecture=sm_90a, -Ifolder, -DNAME=1
   * @returns a cubin
   * @throws CudaError SY_CUDA_COMPILE with the compiler's text
   */
  compile(source: string, file: string, options: readonly string[]): Uint8Array {
    const out: (number | null)[] = [null]
    this.#checked('nvrtcCreateProgram', out, source, file, 0, 0, 0)
    const program = Number(out[0])
    try {
      const result = this.#call.nvrtcCompileProgram(program, options.length, options)
      if (result === COMPILATION_FAILED) {
        const architecture = options.find(option => option.startsWith('--gpu-architecture='))?.slice(19) ?? 'the GPU'
        throw new CudaError('SY_CUDA_COMPILE', { file, architecture, log: this.#log(program) })
      }
      if (result !== 0) this.#fail('nvrtcCompileProgram', result)
      const cubin = new Uint8Array(this.#size('nvrtcGetCUBINSize', program))
      this.#checked('nvrtcGetCUBIN', program, cubin)
      return cubin
    } finally {
      this.#call.nvrtcDestroyProgram([program])
    }
  }

  #log(program: number): string {
    const bytes = Buffer.alloc(this.#size('nvrtcGetProgramLogSize', program))
    this.#checked('nvrtcGetProgramLog', program, bytes)
    return bytes.toString('utf8').replaceAll('\0', '').trim()
  }

  #size(name: 'nvrtcGetCUBINSize' | 'nvrtcGetProgramLogSize', program: number): number {
    const out: (number | null)[] = [null]
    this.#checked(name, program, out)
    return Number(out[0])
  }

  #checked(name: keyof typeof SIGNATURES, ...args: unknown[]): void {
    const result = this.#call[name](...args)
    if (result !== 0) this.#fail(name, result)
  }

  #fail(call: string, number: number): never {
    throw new CudaError('SY_CUDA_NVRTC', { call, number, text: this.#text(number) })
  }
}
