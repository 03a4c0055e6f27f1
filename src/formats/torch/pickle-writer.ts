// Writes the protocol-2 pickle of a `.pt` file: dicts, lists, strings, numbers, booleans and dense tensors, with the memo
// entries PyTorch itself writes, so that torch.load (weights_only too) reads it.

import type { TorchDtype } from './tensor.js'

/** A dense tensor to be written, elements in row-major order. */
export interface TensorData {
  readonly dtype: 'int32' | 'int64' | 'float32' | 'float64'
  readonly shape: readonly number[]
  readonly values: Int32Array | Float32Array | Float64Array | readonly number[]
}

export type Saveable =
  | TensorData
  | number
  | string
  | boolean
  | null
  | readonly Saveable[]
  | { readonly [key: string]: Saveable }

const STORAGE_NAMES: Readonly<Record<TensorData['dtype'], string>> = {
  int32: 'IntStorage',
  int64: 'LongStorage',
  float32: 'FloatStorage',
  float64: 'DoubleStorage',
}

function isTensorData(value: unknown): value is TensorData {
  return typeof value === 'object' && value !== null && 'dtype' in value && 'shape' in value && 'values' in value
}

/** The pickle of `value` and the tensors it refers to: tensor i is storage key String(i). */
export function pickleValue(value: Saveable): { pickle: Uint8Array; tensors: TensorData[] } {
  const writer = new PickleWriter()
  writer.write(value)
  return { pickle: writer.finish(), tensors: writer.tensors }
}

class PickleWriter {
  readonly tensors: TensorData[] = []
  readonly #out: number[] = [0x80, 2]
  readonly #memo = new Map<string, number>()
  #memoSize = 0

  finish(): Uint8Array {
    this.#op('.')
    return Uint8Array.from(this.#out)
  }

  write(value: Saveable): void {
    if (value === null) this.#op('N')
    else if (typeof value === 'boolean') this.#out.push(value ? 0x88 : 0x89)
    else if (typeof value === 'number') this.#number(value)
    else if (typeof value === 'string') this.#string(value)
    else if (isTensorData(value)) this.#tensor(value)
    else if (Array.isArray(value)) this.#list(value as readonly Saveable[])
    else this.#dict(value as { readonly [key: string]: Saveable })
  }

  #op(text: string): void {
    for (let i = 0; i < text.length; i++) this.#out.push(text.charCodeAt(i))
  }

  #u32(value: number): void {
    this.#out.push(value & 255, (value >>> 8) & 255, (value >>> 16) & 255, (value >>> 24) & 255)
  }

  #put(): number {
    const slot = this.#memoSize++
    if (slot < 256) this.#out.push(0x71, slot)
    else {
      this.#op('r')
      this.#u32(slot)
    }
    return slot
  }

  /** Writes what `make` writes and remembers it, or recalls it. */
  #once(key: string, make: () => void): void {
    const slot = this.#memo.get(key)
    if (slot === undefined) {
      make()
      this.#memo.set(key, this.#put())
    } else if (slot < 256) this.#out.push(0x68, slot)
    else {
      this.#op('j')
      this.#u32(slot)
    }
  }

  #string(text: string): void {
    this.#once(`s${text}`, () => {
      const bytes = new TextEncoder().encode(text)
      this.#op('X')
      this.#u32(bytes.length)
      for (const byte of bytes) this.#out.push(byte)
    })
  }

  #global(module: string, name: string): void {
    this.#once(`g${module}.${name}`, () => this.#op(`c${module}\n${name}\n`))
  }

  #number(value: number): void {
    if (!Number.isInteger(value) || Object.is(value, -0)) {
      const bytes = new Uint8Array(8)
      new DataView(bytes.buffer).setFloat64(0, value, false)
      this.#op('G')
      this.#out.push(...bytes)
    } else if (value >= 0 && value < 256) this.#out.push(0x4b, value)
    else if (value >= 0 && value < 65536) this.#out.push(0x4d, value & 255, value >> 8)
    else if (value >= -(2 ** 31) && value < 2 ** 31) {
      this.#op('J')
      this.#u32(value)
    } else this.#long(BigInt(value))
  }

  #long(value: bigint): void {
    let length = 1
    while (BigInt.asIntN(length * 8, value) !== value) length++
    this.#out.push(0x8a, length)
    for (let i = 0; i < length; i++) this.#out.push(Number((value >> BigInt(8 * i)) & 255n))
  }

  #list(items: readonly Saveable[]): void {
    this.#op(']')
    this.#put()
    if (items.length === 0) return
    this.#op('(')
    for (const item of items) this.write(item)
    this.#op('e')
  }

  #dict(dict: { readonly [key: string]: Saveable }): void {
    this.#op('}')
    this.#put()
    const entries = Object.entries(dict)
    if (entries.length === 0) return
    if (entries.length > 1) this.#op('(')
    for (const [key, value] of entries) {
      this.#string(key)
      this.write(value)
    }
    this.#op(entries.length > 1 ? 'u' : 's')
  }

  #tuple(items: readonly number[]): void {
    if (items.length === 0) {
      this.#op(')')
      return
    }
    if (items.length > 3) this.#op('(')
    for (const item of items) this.#number(item)
    if (items.length > 3) this.#op('t')
    else this.#out.push(0x84 + items.length)
    this.#put()
  }

  /** _rebuild_tensor_v2(storage, 0, shape, strides, requires_grad False, OrderedDict()). */
  #tensor(tensor: TensorData): void {
    const key = String(this.tensors.length)
    this.tensors.push(tensor)
    this.#global('torch._utils', '_rebuild_tensor_v2')
    this.#op('((')
    this.#string('storage')
    this.#global('torch', STORAGE_NAMES[tensor.dtype])
    this.#string(key)
    this.#string('cpu')
    this.#number(tensor.shape.reduce((product, n) => product * n, 1))
    this.#op('t')
    this.#put()
    this.#op('Q')
    this.#number(0)
    this.#tuple(tensor.shape)
    this.#tuple(denseStrides(tensor.shape))
    this.#out.push(0x89)
    this.#global('collections', 'OrderedDict')
    this.#op(')R')
    this.#put()
    this.#op('t')
    this.#put()
    this.#op('R')
    this.#put()
  }
}

/** Row-major strides in elements. */
function denseStrides(shape: readonly number[]): number[] {
  const strides = new Array<number>(shape.length)
  let step = 1
  for (let d = shape.length - 1; d >= 0; d--) {
    strides[d] = step
    step *= Math.max(shape[d]!, 1)
  }
  return strides
}

/** The little-endian bytes of a tensor's elements. */
export function tensorBytes(tensor: TensorData): Uint8Array {
  const width: Readonly<Record<TensorData['dtype'] & TorchDtype, number>> = {
    int32: 4,
    int64: 8,
    float32: 4,
    float64: 8,
  }
  const step = width[tensor.dtype]
  const bytes = new Uint8Array(tensor.values.length * step)
  const data = new DataView(bytes.buffer)
  for (let i = 0; i < tensor.values.length; i++) {
    const value = tensor.values[i]!
    if (tensor.dtype === 'int32') data.setInt32(i * step, value, true)
    else if (tensor.dtype === 'int64') data.setBigInt64(i * step, BigInt(value), true)
    else if (tensor.dtype === 'float32') data.setFloat32(i * step, value, true)
    else data.setFloat64(i * step, value, true)
  }
  return bytes
}
