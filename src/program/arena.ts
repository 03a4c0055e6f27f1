// Buffer planning: arena buffers whose lifetimes do not overlap share memory. A pure function of the program.
import { alignUp } from '../device/memory.js'
import { type ActivationDtype, elementBytes } from '../device/ops.js'
import { readsOf, writesOf } from './operation.js'
import { type BufferSpec, boundedRows, type Program } from './program.js'

export interface ArenaPlan {
  /** Bytes of the whole arena. */
  readonly bytes: number
  /** Bytes if nothing were shared. */
  readonly unsharedBytes: number
  /** Byte offset of each arena buffer. */
  readonly offsets: Readonly<Record<string, number>>
  /** First and last operation that touches each arena buffer. */
  readonly lifetimes: Readonly<Record<string, readonly [number, number]>>
}

/** Bytes of an element of a buffer. */
const bytesOf = ({ dtype }: BufferSpec, activation: ActivationDtype): number =>
  elementBytes(dtype === 'act' ? activation : 'f32')

export const bufferBytes = (program: Program, buffer: BufferSpec, activation: ActivationDtype = 'f32'): number =>
  alignUp(boundedRows(program, buffer) * buffer.columns * bytesOf(buffer, activation))

/** First and last operation that touches each buffer of the arena. */
function lifetimesOf(program: Program): Map<string, [number, number]> {
  const arena = new Set(program.buffers.filter(b => b.kind === 'arena').map(b => b.name))
  const lifetimes = new Map<string, [number, number]>()
  program.operations.forEach((op, i) => {
    for (const { buffer } of [...readsOf(op), ...writesOf(op)]) {
      if (!arena.has(buffer)) continue
      const life = lifetimes.get(buffer)
      if (life) life[1] = i
      else lifetimes.set(buffer, [i, i])
    }
  })
  return lifetimes
}

/** Places large buffers first, each at the lowest offset that is free during its whole lifetime. */
export function planArena(program: Program, activation: ActivationDtype = 'f32'): ArenaPlan {
  const lifetimes = lifetimesOf(program)
  const wanted = program.buffers
    .filter(b => lifetimes.has(b.name))
    .map(b => ({ name: b.name, bytes: bufferBytes(program, b, activation), life: lifetimes.get(b.name)! }))
    .sort((a, b) => b.bytes - a.bytes || a.life[0] - b.life[0])
  const placed: { offset: number; bytes: number; life: readonly [number, number] }[] = []
  const offsets: Record<string, number> = {}
  let bytes = 0
  for (const want of wanted) {
    const rivals = placed
      .filter(p => p.life[0] <= want.life[1] && want.life[0] <= p.life[1])
      .sort((a, b) => a.offset - b.offset)
    let offset = 0
    for (const rival of rivals) {
      if (offset + want.bytes <= rival.offset) break
      offset = Math.max(offset, rival.offset + rival.bytes)
    }
    placed.push({ offset, bytes: want.bytes, life: want.life })
    offsets[want.name] = offset
    bytes = Math.max(bytes, offset + want.bytes)
  }
  const unsharedBytes = wanted.reduce((sum, w) => sum + w.bytes, 0)
  return { bytes, unsharedBytes, offsets, lifetimes: Object.fromEntries(lifetimes) }
}
