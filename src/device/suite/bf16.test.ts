// The bf16 suite against the reference, made to work on bf16 operands: they are widened before a kernel and rounded after it.
// So oracles and bounds are tested where there is no accelerator.
import { describe } from 'vitest'
import { createCpuDevice } from '../cpu/index.js'
import { bf16ToNumber, roundToBf16 } from '../cpu/number-formats.js'
import { f32View, HostMemoryLender, type MemorySpan, u16View } from '../memory.js'
import type { Kernel, Operand, Ops } from '../ops.js'
import { bf16Suite } from './bf16.suite.js'

const isHalf = (v: unknown): v is Operand => typeof v === 'object' && v !== null && 'dtype' in v && v.dtype === 'bf16'

/** Binds `bind` to f32 copies of the bf16 operands in `args`; the kernel copies in and out. */
function widened(bind: (a: unknown) => Kernel, args: Record<string, unknown>): Kernel {
  const lender = new HostMemoryLender()
  const copies = new Map<SharedArrayBuffer, { from: MemorySpan; to: MemorySpan }>()
  const wide = Object.fromEntries(
    Object.entries(args).map(([key, value]) => {
      if (!isHalf(value)) return [key, value]
      const buffer = value.span.buffer as SharedArrayBuffer
      const copy = copies.get(buffer) ?? { from: value.span, to: lender.lend(value.span.byteLength * 2, 'test') }
      copies.set(buffer, copy)
      return [key, { span: copy.to, offset: value.offset, stride: value.stride }]
    }),
  )
  const kernel = bind(wide)
  return rows => {
    for (const { from, to } of copies.values()) {
      const wideView = f32View(to)
      u16View(from).forEach((bits, i) => {
        wideView[i] = bf16ToNumber(bits)
      })
    }
    kernel(rows)
    for (const { from, to } of copies.values()) {
      const bits = u16View(from)
      const wideView = f32View(to)
      for (let i = 0; i < bits.length; i++) bits[i] = roundToBf16(wideView[i]!)
    }
  }
}

describe('reference kernels on widened rows', () => {
  const { ops, packer } = createCpuDevice({ kernels: 'reference' })
  const entries = Object.entries(ops).map(([name, bind]) => [
    name,
    typeof bind === 'function' ? (a: Record<string, unknown>) => widened(bind as (a: unknown) => Kernel, a) : bind,
  ])
  bf16Suite({ ops: Object.fromEntries(entries) as Ops, packer })
})
