// Machine code loaded on a GPU, its kernels, and their launches. A launch is one foreign call: its configuration and its
// arguments lie ready in memory that the driver reads.
import { Unreachable } from '../../config/errors.js'
import { type ArgumentLayout, layOutArguments } from './arguments.js'
import type { CudaContext } from './context.js'
import { FUNCTION_ATTRIBUTE } from './driver.js'
import { CudaError } from './errors.js'
import { PackedMemory } from './packed-memory.js'
import type { ArgumentType, ArgumentValue, CudaFunction, CudaStream, Dim3, LaunchArguments } from './types.js'

/** A block may have this much shared memory, the kernel's own included, without asking. */
const DEFAULT_SHARED_BYTES = 48 << 10
const NOT_FOUND = 500

export class CudaModule implements Disposable {
  readonly #context: CudaContext
  readonly #file: string
  readonly #handle: number

  constructor(context: CudaContext, cubin: Uint8Array, file: string) {
    this.#context = context
    this.#file = file
    context.makeCurrent()
    this.#handle = context.driver.get('cuModuleLoadData', cubin)
  }

  /** @throws CudaError SY_CUDA_NO_KERNEL */
  function(name: string, stream: CudaStream): CudaFunction {
    const { driver } = this.#context
    const out: (number | null)[] = [null]
    const result = driver.ask('cuModuleGetFunction', out, this.#handle, name)
    if (result === NOT_FOUND)
      throw new CudaError('SY_CUDA_NO_KERNEL', { file: this.#file, name, text: 'no such name in the code' })
    if (result !== 0) driver.fail('cuModuleGetFunction', result)
    return new LoadedFunction(this.#context, Number(out[0]), name, stream)
  }

  /** No launch of its kernels may be running or captured any more. */
  [Symbol.dispose](): void {
    this.#context.driver.release('cuModuleUnload', this.#handle)
  }
}

class LoadedFunction implements CudaFunction {
  readonly name: string
  readonly registers: number
  readonly localBytes: number
  readonly handle: number
  readonly context: CudaContext
  readonly stream: CudaStream
  #allowedShared: number

  constructor(context: CudaContext, handle: number, name: string, stream: CudaStream) {
    this.context = context
    this.handle = handle
    this.name = name
    this.stream = stream
    // Asking also loads the kernel where the driver loads lazily, which a capture would not allow.
    this.registers = context.driver.get('cuFuncGetAttribute', FUNCTION_ATTRIBUTE.registers, handle)
    this.localBytes = context.driver.get('cuFuncGetAttribute', FUNCTION_ATTRIBUTE.localBytes, handle)
    this.#allowedShared =
      DEFAULT_SHARED_BYTES - context.driver.get('cuFuncGetAttribute', FUNCTION_ATTRIBUTE.sharedBytes, handle)
  }

  bind(
    layout: readonly ArgumentType[],
    values: readonly ArgumentValue[],
    { programmatic = false }: { programmatic?: boolean } = {},
  ): LaunchArguments {
    const laidOut = layOutArguments(layout)
    this.#compare(laidOut)
    return new BoundLaunch(this, laidOut, values, programmatic)
  }

  /** What is bound is what the kernel takes: a forgotten argument would be whatever lies behind the others. */
  #compare({ types, offsets, byteLength }: ArgumentLayout): void {
    const { driver } = this.context
    const ends = [...offsets.slice(1), byteLength]
    // With tensor maps the driver's places are not these; arguments then go by address, and each has its size.
    const placed = !types.includes('tensorMap')
    for (let i = 0; i <= types.length; i++) {
      const wanted = driver.parameter(this.handle, i)
      if (wanted === undefined) return
      const last = i === types.length
      const fits = wanted ? !last && wanted.size <= ends[i]! - offsets[i]! : last
      if (!fits || (placed && wanted && wanted.offset !== offsets[i]))
        throw new Unreachable(
          `argument ${i} of ${this.name} is bound as ${types[i] ?? 'nothing'}, the kernel takes another`,
        )
    }
  }

  blocksPerSm(threads: number, sharedBytes = 0): number {
    this.allowShared(sharedBytes)
    return this.context.driver.get('cuOccupancyMaxActiveBlocksPerMultiprocessor', this.handle, threads, sharedBytes)
  }

  allowShared(bytes: number): void {
    if (bytes <= this.#allowedShared) return
    this.context.driver.call('cuFuncSetAttribute', this.handle, FUNCTION_ATTRIBUTE.dynamicSharedBytes, bytes)
    this.#allowedShared = bytes
  }
}

/** Offsets in one piece of memory: CUlaunchConfig, its attribute, the `extra` list, the argument bytes. */
const CONFIG = { grid: 0, block: 12, shared: 24, stream: 32, attributes: 40, attributeCount: 48 } as const
const ATTRIBUTE_AT = 64
const EXTRA_AT = 192
const SIZE_AT = 256
const ARGUMENTS_AT = 320
const BUFFER_POINTER = 1
const BUFFER_SIZE = 2
const PROGRAMMATIC_SERIALIZATION = 6
/** Older GPUs run launches one after the other. */
const PROGRAMMATIC_CAPABILITY = 90

class BoundLaunch implements LaunchArguments {
  readonly #fn: LoadedFunction
  readonly #layout: ArgumentLayout
  readonly #memory: PackedMemory
  readonly #config: Uint32Array
  readonly #configAddress: number
  /** The list of argument addresses, kept alive; null when the arguments travel as one buffer. */
  readonly #list: PackedMemory | null = null
  readonly #paramsAddress: number
  readonly #extraAddress: number
  readonly #launch: (config: number, fn: number, params: number, extra: number) => number

  constructor(fn: LoadedFunction, layout: ArgumentLayout, values: readonly ArgumentValue[], programmatic: boolean) {
    if (values.length !== layout.types.length)
      throw new Unreachable(`${fn.name} is bound with ${values.length} values for ${layout.types.length} arguments`)
    this.#fn = fn
    this.#layout = layout
    const memory = new PackedMemory(fn.context.libraries.koffi, ARGUMENTS_AT + Math.max(layout.byteLength, 8))
    this.#memory = memory
    this.#config = new Uint32Array(memory.bytes.buffer, memory.bytes.byteOffset, 8)
    this.#configAddress = memory.address
    this.#launch = fn.context.driver.launchRaw
    memory.u64(CONFIG.stream, fn.stream.handle)
    if (programmatic && fn.context.properties.capability >= PROGRAMMATIC_CAPABILITY) {
      memory.u64(CONFIG.attributes, memory.address + ATTRIBUTE_AT)
      memory.u32(CONFIG.attributeCount, 1)
      memory.u32(ATTRIBUTE_AT, PROGRAMMATIC_SERIALIZATION)
      memory.u32(ATTRIBUTE_AT + 8, 1)
    }
    // A buffer of all arguments is not placed where the kernel looks when one of them asks for more than 16 bytes of
    // alignment (seen with driver 580: an illegal instruction), so tensor maps are passed by a list of addresses.
    const byAddress = layout.types.includes('tensorMap')
    if (byAddress) {
      const list = new PackedMemory(fn.context.libraries.koffi, layout.types.length * 8)
      layout.offsets.forEach((offset, i) => {
        list.u64(i * 8, memory.address + ARGUMENTS_AT + offset)
      })
      this.#list = list
    }
    memory.u64(SIZE_AT, layout.byteLength)
    const extra = [BUFFER_POINTER, memory.address + ARGUMENTS_AT, BUFFER_SIZE, memory.address + SIZE_AT, 0]
    extra.forEach((value, i) => {
      memory.u64(EXTRA_AT + i * 8, value)
    })
    this.#paramsAddress = this.#list?.address ?? 0
    this.#extraAddress = byAddress ? 0 : memory.address + EXTRA_AT
    values.forEach((value, i) => {
      if (typeof value === 'number') this.set(i, value)
      else this.#setBytes(i, value)
    })
  }

  set(index: number, value: number): void {
    const offset = ARGUMENTS_AT + this.#layout.offsets[index]!
    switch (this.#layout.types[index]) {
      case 'u64':
        this.#memory.u64(offset, value)
        break
      case 'i32':
      case 'u32':
        this.#memory.u32(offset, value)
        break
      case 'f32':
        this.#memory.f32(offset, value)
        break
      default:
        throw new Unreachable(`argument ${index} of ${this.#fn.name} takes no number`)
    }
  }

  #setBytes(index: number, value: Uint8Array): void {
    if (this.#layout.types[index] !== 'tensorMap')
      throw new Unreachable(`argument ${index} of ${this.#fn.name} takes no tensor map`)
    this.#memory.bytes.set(value, ARGUMENTS_AT + this.#layout.offsets[index]!)
  }

  launch(grid: Dim3, block: number | Dim3, sharedBytes = 0): void {
    const config = this.#config
    config[0] = grid[0]
    config[1] = grid[1]
    config[2] = grid[2]
    if (typeof block === 'number') {
      config[3] = block
      config[4] = 1
      config[5] = 1
    } else {
      config[3] = block[0]
      config[4] = block[1]
      config[5] = block[2]
    }
    config[6] = sharedBytes
    this.#fn.allowShared(sharedBytes)
    const result = this.#launch(this.#configAddress, this.#fn.handle, this.#paramsAddress, this.#extraAddress)
    if (result !== 0) this.#fn.context.driver.fail(`the launch of ${this.#fn.name}`, result)
  }
}
