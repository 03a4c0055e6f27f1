// What all attention kernels of bf16 or f32 caches are launched with: their common arguments, and memory for partial results.
import type { Ops } from '../../ops.js'
import type { CudaKernels } from '../kernels.js'
import type { ArgumentType, CudaFunction, LaunchArguments } from '../types.js'
import { PARTIAL_BYTES, shiftOf } from './attention-layout.js'
import { faultAddress } from './faults.js'
import { bounded, type Field, field, vectorAddress } from './operands.js'

export type AttentionSpec = Parameters<Ops['attention']>[0]

/** Rows in one launch that may be cut into parts. */
export const MOST_ITEMS = 65536
const NO_WINDOW = 1 << 30

/** Arguments of the kernels, ATT_PARAMETERS of attention_batch.cuh, in that order. */
export const ATTENTION_PARAMETERS = {
  ...{ out: 'u64', q: 'u64', kv: 'u64', rowSequence: 'u64', positions: 'u64', pageTable: 'u64', plan: 'u64' },
  ...{ partials: 'u64', counters: 'u64', sinks: 'u64', faults: 'u64', rows: 'i32', outStride: 'i32', qStride: 'i32' },
  ...{ kvStride: 'i32', rowSequenceStride: 'i32', positionStride: 'i32', tableStride: 'i32', keyOffset: 'i32' },
  ...{ valueOffset: 'i32', pageSize: 'i32', pageShift: 'i32', kvHeads: 'i32', groupHeads: 'i32', splits: 'i32' },
  ...{ minTiles: 'i32', window: 'i32', capacity: 'i32', tableEntries: 'i32', scaleLog2: 'f32' },
} as const satisfies Record<string, ArgumentType>

export type AttentionParameter = keyof typeof ATTENTION_PARAMETERS
const NAMES = Object.keys(ATTENTION_PARAMETERS) as AttentionParameter[]

/** Where an argument lies, for `LaunchArguments.set`. */
export const placeOf = (name: AttentionParameter): number => NAMES.indexOf(name)

export interface AttentionLaunch {
  readonly sequences: Field
  readonly positions: Field
  /** What the number of rows is checked against. */
  readonly fields: readonly Field[]
  /** @param more values instead of those of the operation */
  readonly bind: (fn: CudaFunction, more?: Partial<Record<AttentionParameter, number>>) => LaunchArguments
}

/** The arguments of an operation whose heads are a multiple of its KV heads. `programmatic`: kernels start while the one before them ends. */
export function attentionLaunch(d: CudaKernels, a: AttentionSpec, programmatic: boolean): AttentionLaunch {
  const { heads, kvHeads, qkWidth, vWidth, batch } = a
  const [out, q] = [field(d, a.out, heads * vWidth), field(d, a.q, heads * qkWidth)]
  const kv = field(d, a.kv, Math.max(a.keyOffset + kvHeads * qkWidth, a.valueOffset + kvHeads * vWidth))
  const [sequences, positions] = [field(d, batch.rowSequence), field(d, batch.positions)]
  const table = field(d, batch.pageTable)
  const values: Record<AttentionParameter, number> = {
    ...{ out: out.address, q: q.address, kv: kv.address, rowSequence: sequences.address, positions: positions.address },
    ...{ pageTable: table.address, plan: 0, partials: 0, counters: 0, sinks: vectorAddress(d, a.sinks, heads) },
    ...{ faults: faultAddress(d), rows: 0, outStride: out.stride, qStride: q.stride, kvStride: kv.stride },
    ...{ rowSequenceStride: sequences.stride, positionStride: positions.stride, tableStride: table.stride },
    ...{ keyOffset: a.keyOffset, valueOffset: a.valueOffset, pageSize: batch.pageSize },
    ...{ pageShift: shiftOf(batch.pageSize), kvHeads, groupHeads: heads / kvHeads, splits: 1, minTiles: 1 },
    ...{ window: a.window ?? NO_WINDOW, capacity: bounded(kv.capacity), tableEntries: tableEntries(a) },
    scaleLog2: a.scale * Math.LOG2E,
  }
  return {
    ...{ sequences, positions, fields: [out, q, sequences, positions] },
    bind(fn, more) {
      const all = { ...values, ...more }
      const ordered = NAMES.map(n => all[n])
      return fn.bind(Object.values(ATTENTION_PARAMETERS), ordered, { programmatic })
    },
  }
}

export const tableEntries = ({ batch: { pageTable } }: AttentionSpec): number =>
  bounded(pageTable.span.byteLength / 4 - pageTable.offset)

/** Partial results and the counters of their parts; every attention of a stream shares them. */
export function partialsOf(
  d: CudaKernels,
  pieces: number,
  { sequences, positions }: AttentionLaunch,
): { readonly partials: number; readonly counters: number } {
  const pairs = pieces * Math.min(sequences.capacity, positions.capacity, MOST_ITEMS)
  return {
    partials: d.workspace(PARTIAL_BYTES, 'attention parts'),
    counters: d.workspace(pairs * 4, 'attention counters'),
  }
}
