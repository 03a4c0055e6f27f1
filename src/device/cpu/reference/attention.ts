// Paged attention of the reference: one row and head at a time, two passes over all visible positions in ascending order,
// double precision. Rows of padding (a negative sequence or position) give zeros.
import type { Kernel, Operand, PagedBatch, ParameterVector } from '../../ops.js'
import { checkIndex, f32Rows, i32Rows, parameters, perRow } from './rows.js'

export function attention(a: {
  out: Operand
  q: Operand
  kv: Operand
  batch: PagedBatch
  heads: number
  kvHeads: number
  qkWidth: number
  vWidth: number
  keyOffset: number
  valueOffset: number
  scale: number
  window?: number
  sinks?: ParameterVector
}): Kernel {
  const { heads, kvHeads, qkWidth, vWidth, window } = a
  const { pageSize } = a.batch
  const out = f32Rows(a.out, heads * vWidth)
  const q = f32Rows(a.q, heads * qkWidth)
  const kv = f32Rows(a.kv, Math.max(a.keyOffset + kvHeads * qkWidth, a.valueOffset + kvHeads * vWidth))
  const rowSequence = i32Rows(a.batch.rowSequence)
  const positions = i32Rows(a.batch.positions)
  const table = i32Rows(a.batch.pageTable)
  const sinks = parameters(a.sinks)
  const slots: number[] = []
  const weights: number[] = []
  const sum = new Float64Array(vWidth)

  return perRow([out, q, rowSequence, positions], r => {
    const o = out.at(r)
    const sequence = rowSequence.data[rowSequence.at(r)]!
    const position = positions.data[positions.at(r)]!
    out.data.fill(0, o, o + heads * vWidth)
    if (sequence < 0 || position < 0) return
    const start = window ? Math.max(0, position - window + 1) : 0
    slots.length = 0
    for (let p = start; p <= position; p++) {
      const entry = table.at(sequence) + Math.floor(p / pageSize)
      checkIndex(entry, table.data.length, 'page table entry')
      const slot = table.data[entry]! * pageSize + (p % pageSize)
      checkIndex(slot, kv.capacity, 'slot')
      slots.push(kv.at(slot))
    }
    for (let h = 0; h < heads; h++) {
      const kvHead = Math.floor((h * kvHeads) / heads)
      const query = q.at(r) + h * qkWidth
      let most = sinks ? sinks[h]! : Number.NEGATIVE_INFINITY
      weights.length = 0
      for (const slot of slots) {
        const key = slot + a.keyOffset + kvHead * qkWidth
        let dot = 0
        for (let c = 0; c < qkWidth; c++) dot += q.data[query + c]! * kv.data[key + c]!
        weights.push(dot * a.scale)
        most = Math.max(most, dot * a.scale)
      }
      let total = sinks ? Math.exp(sinks[h]! - most) : 0
      sum.fill(0)
      for (let i = 0; i < slots.length; i++) {
        const weight = Math.exp(weights[i]! - most)
        const value = slots[i]! + a.valueOffset + kvHead * vWidth
        total += weight
        for (let c = 0; c < vWidth; c++) sum[c]! += weight * kv.data[value + c]!
      }
      for (let c = 0; c < vWidth; c++) out.data[o + h * vWidth + c] = sum[c]! / total
    }
  })
}
