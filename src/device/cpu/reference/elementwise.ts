// Row-wise operations of the reference: norms, add, copy, gather, rope, KV store, gates. Double precision inside.
import { Unreachable } from '../../../config/errors.js'
import type { MemorySpan } from '../../memory.js'
import { f32View } from '../../memory.js'
import type { GatedActivation, Kernel, Operand, ParameterVector } from '../../ops.js'
import { checkIndex, f32Rows, i32Rows, parameters, perRow } from './rows.js'

export const sigmoid = (x: number): number => 1 / (1 + Math.exp(-x))

/** act(gate, up): see GatedActivation in ops.ts. */
export function gated(a: GatedActivation): (gate: number, up: number) => number {
  if (a.kind === 'silu') return (g, u) => g * sigmoid(g) * u
  const { limit, alpha } = a
  return (g, u) => {
    const gate = Math.min(g, limit)
    return gate * sigmoid(alpha * gate) * (Math.max(-limit, Math.min(u, limit)) + 1)
  }
}

function normalize(
  out: Float32Array,
  o: number,
  x: Float32Array,
  i: number,
  weight: Float32Array,
  width: number,
  eps: number,
): void {
  let squares = 0
  for (let c = 0; c < width; c++) squares += x[i + c]! * x[i + c]!
  const inverse = 1 / Math.sqrt(squares / width + eps)
  for (let c = 0; c < width; c++) out[o + c] = x[i + c]! * inverse * weight[c]!
}

export function rmsNorm(a: {
  out: Operand
  x: Operand
  weight: ParameterVector
  width: number
  groups: number
  eps: number
}): Kernel {
  const out = f32Rows(a.out, a.width * a.groups)
  const x = f32Rows(a.x, a.width * a.groups)
  const weight = parameters(a.weight)!
  return perRow([out, x], r => {
    for (let g = 0; g < a.groups; g++)
      normalize(out.data, out.at(r) + g * a.width, x.data, x.at(r) + g * a.width, weight, a.width, a.eps)
  })
}

export function addRmsNorm(a: {
  out: Operand
  residual: Operand
  x: Operand
  weight: ParameterVector
  width: number
  eps: number
}): Kernel {
  const out = f32Rows(a.out, a.width)
  const residual = f32Rows(a.residual, a.width)
  const x = f32Rows(a.x, a.width)
  const weight = parameters(a.weight)!
  return perRow([out, residual, x], r => {
    const s = residual.at(r)
    for (let c = 0; c < a.width; c++) residual.data[s + c]! += x.data[x.at(r) + c]!
    normalize(out.data, out.at(r), residual.data, s, weight, a.width, a.eps)
  })
}

export function sumAddRmsNorm(a: {
  out: Operand
  residual: Operand
  xs: readonly Operand[]
  first: Operand
  weight: ParameterVector
  width: number
  eps: number
}): Kernel {
  const out = f32Rows(a.out, a.width)
  const residual = f32Rows(a.residual, a.width)
  const xs = a.xs.map(x => f32Rows(x, a.width))
  const first = i32Rows(a.first)
  const weight = parameters(a.weight)!
  const capacity = Math.min(...xs.map(x => x.capacity))
  if (xs.length === 0) throw new Unreachable('a sum over no members')
  return perRow([out, residual], r => {
    const from = first.data[first.at(0)]! + r
    checkIndex(from, capacity, 'row')
    const s = residual.at(r)
    for (let c = 0; c < a.width; c++) {
      let sum = xs[0]!.data[xs[0]!.at(from) + c]!
      for (let m = 1; m < xs.length; m++) sum = Math.fround(sum + xs[m]!.data[xs[m]!.at(from) + c]!)
      residual.data[s + c]! += sum
    }
    normalize(out.data, out.at(r), residual.data, s, weight, a.width, a.eps)
  })
}

export function add(a: { out: Operand; a: Operand; b: Operand; width: number }): Kernel {
  const out = f32Rows(a.out, a.width)
  const x = f32Rows(a.a, a.width)
  const y = f32Rows(a.b, a.width)
  return perRow([out, x, y], r => {
    for (let c = 0; c < a.width; c++) out.data[out.at(r) + c] = x.data[x.at(r) + c]! + y.data[y.at(r) + c]!
  })
}

export function copy(a: { out: Operand; x: Operand; width: number }): Kernel {
  const out = f32Rows(a.out, a.width)
  const x = f32Rows(a.x, a.width)
  return perRow([out, x], r => out.data.set(x.data.subarray(x.at(r), x.at(r) + a.width), out.at(r)))
}

export function gatherRows(a: { out: Operand; x: Operand; index: Operand; width: number }): Kernel {
  const out = f32Rows(a.out, a.width)
  const x = f32Rows(a.x, a.width)
  const index = i32Rows(a.index)
  return perRow([out, index], r => {
    const i = index.data[index.at(r)]!
    checkIndex(i, x.capacity, 'row')
    out.data.set(x.data.subarray(x.at(i), x.at(i) + a.width), out.at(r))
  })
}

export function rope(a: {
  out: Operand
  outHeadStride: number
  x: Operand
  xHeadStride: number
  heads: number
  width: number
  positions: Operand
  cosSin: MemorySpan
  interleaved: boolean
}): Kernel {
  const out = f32Rows(a.out, (a.heads - 1) * a.outHeadStride + a.width)
  const x = f32Rows(a.x, (a.heads - 1) * a.xHeadStride + a.width)
  const positions = i32Rows(a.positions)
  const cosSin = f32View(a.cosSin)
  const half = a.width / 2
  const head = new Float32Array(a.width)
  return perRow([out, x, positions], r => {
    const position = positions.data[positions.at(r)]!
    checkIndex(position, Math.floor(cosSin.length / a.width), 'position')
    const cos = position * a.width
    for (let h = 0; h < a.heads; h++) {
      const i = x.at(r) + h * a.xHeadStride
      const o = out.at(r) + h * a.outHeadStride
      head.set(x.data.subarray(i, i + a.width))
      for (let c = 0; c < half; c++) {
        const u = head[a.interleaved ? 2 * c : c]!
        const v = head[a.interleaved ? 2 * c + 1 : half + c]!
        const cosine = cosSin[cos + c]!
        const sine = cosSin[cos + half + c]!
        out.data[o + c] = u * cosine - v * sine
        out.data[o + half + c] = v * cosine + u * sine
      }
    }
  })
}

export function storeKv(a: { kv: Operand; x: Operand; slots: Operand; width: number }): Kernel {
  const kv = f32Rows(a.kv, a.width)
  const x = f32Rows(a.x, a.width)
  const slots = i32Rows(a.slots)
  return perRow([x, slots], r => {
    const slot = slots.data[slots.at(r)]!
    if (slot < 0) return
    checkIndex(slot, kv.capacity, 'slot')
    kv.data.set(x.data.subarray(x.at(r), x.at(r) + a.width), kv.at(slot))
  })
}

export function gatedActivation(a: { out: Operand; x: Operand; width: number; activation: GatedActivation }): Kernel {
  const out = f32Rows(a.out, a.width)
  const x = f32Rows(a.x, 2 * a.width)
  const act = gated(a.activation)
  return perRow([out, x], r => {
    const i = x.at(r)
    for (let c = 0; c < a.width; c++) out.data[out.at(r) + c] = act(x.data[i + c]!, x.data[i + a.width + c]!)
  })
}

export function sigmoidScale(a: {
  out: Operand
  x: Operand
  gate: Operand
  width: number
  accumulate?: boolean
}): Kernel {
  const out = f32Rows(a.out, a.width)
  const x = f32Rows(a.x, a.width)
  const gate = f32Rows(a.gate, 1)
  return perRow([out, x, gate], r => {
    const g = sigmoid(gate.data[gate.at(r)]!)
    const o = out.at(r)
    for (let c = 0; c < a.width; c++) out.data[o + c] = (a.accumulate ? out.data[o + c]! : 0) + x.data[x.at(r) + c]! * g
  })
}
