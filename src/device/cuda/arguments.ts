// Where the arguments of a kernel lie in its parameter buffer: each at the next multiple of its own size, as the compiler
// lays out a parameter list (CUDA driver API, cuLaunchKernel, CU_LAUNCH_PARAM_BUFFER_POINTER). Pure.
import { alignUp } from '../memory.js'
import { TENSOR_MAP_BYTES } from './tensor-map.js'
import type { ArgumentType } from './types.js'

const BYTES: Readonly<Record<ArgumentType, { size: number; alignment: number }>> = {
  u64: { size: 8, alignment: 8 },
  i32: { size: 4, alignment: 4 },
  u32: { size: 4, alignment: 4 },
  f32: { size: 4, alignment: 4 },
  tensorMap: { size: TENSOR_MAP_BYTES, alignment: 64 },
}

export interface ArgumentLayout {
  readonly types: readonly ArgumentType[]
  readonly offsets: readonly number[]
  readonly byteLength: number
}

export function layOutArguments(types: readonly ArgumentType[]): ArgumentLayout {
  const offsets: number[] = []
  let end = 0
  for (const type of types) {
    const { size, alignment } = BYTES[type]
    const offset = alignUp(end, alignment)
    offsets.push(offset)
    end = offset + size
  }
  return { types, offsets, byteLength: end }
}
