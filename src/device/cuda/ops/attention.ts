// Attention on tensor cores: GQA with heads of 64 or 128 and absorbed MLA, bf16. Chooses and launches; the kernels are
// attention_plan.cu, attention_decode.cu, attention_prefill.cu and attention_latent.cu.
import type { Kernel, Operand, Ops } from '../../ops.js'
import type { CudaKernels } from '../kernels.js'
import type { ArgumentType, LaunchArguments } from '../types.js'
import {
  attentionFamily,
  type DecodeCut,
  decodeCut,
  decodePieces,
  latentSharedBytes,
  PARTIAL_BYTES,
  partBytes,
  partsRoom,
  prefillBlocks,
  prefillTileRows,
  shiftOf,
} from './attention-layout.js'
import { attentionStep } from './attention-step.js'
import { faultAddress } from './faults.js'
import { bounded, type Field, field, kernelOf, vectorAddress } from './operands.js'

export type AttentionSpec = Parameters<Ops['attention']>[0]

/** Up to this many rows no look at the batch's structure pays: every row is taken by itself. */
const FEW_ROWS = 4
/** Rows in one launch that may be cut into parts. */
const MOST_ITEMS = 65536
const NO_WINDOW = 1 << 30

/** Arguments of the kernels, ATT_PARAMETERS of attention_batch.cuh, in that order. */
export const ATTENTION_PARAMETERS = {
  ...{ out: 'u64', q: 'u64', kv: 'u64', rowSequence: 'u64', positions: 'u64', pageTable: 'u64', plan: 'u64' },
  ...{ partials: 'u64', counters: 'u64', sinks: 'u64', faults: 'u64', rows: 'i32', outStride: 'i32', qStride: 'i32' },
  ...{ kvStride: 'i32', rowSequenceStride: 'i32', positionStride: 'i32', tableStride: 'i32', keyOffset: 'i32' },
  ...{ valueOffset: 'i32', pageSize: 'i32', pageShift: 'i32', kvHeads: 'i32', groupHeads: 'i32', splits: 'i32' },
  ...{ minTiles: 'i32', window: 'i32', capacity: 'i32', tableEntries: 'i32', scaleLog2: 'f32' },
} as const satisfies Record<string, ArgumentType>

type Parameter = keyof typeof ATTENTION_PARAMETERS
const NAMES = Object.keys(ATTENTION_PARAMETERS) as Parameter[]
const placeOf = (name: Parameter): number => NAMES.indexOf(name)
const AT = {
  plan: placeOf('plan'),
  rows: placeOf('rows'),
  splits: placeOf('splits'),
  minTiles: placeOf('minTiles'),
}

export interface FastAttentionOptions {
  /** For measurements: how decode is cut, instead of `decodeCut`; parts beyond the memory for them are not made. */
  readonly cut?: (rows: number) => DecodeCut
  /** Which matrix instructions prompts use: of a warp (any GPU), or of a warpgroup (Hopper, heads of 128). */
  readonly prompts?: PromptKernel
  /** Kernels start while the one before them ends (programmatic dependent launch); so they do unless this says no. */
  readonly overlapping?: boolean
}

export type PromptKernel = 'warp' | 'warpgroup'

/** The warpgroup's where there is one. */
const PROMPTS: PromptKernel = 'warpgroup'

/** @returns undefined where operands or shapes are not of the fast kind: plain attention takes those */
export function fastAttention(
  d: CudaKernels,
  a: AttentionSpec,
  options: FastAttentionOptions = {},
): Kernel | undefined {
  const { heads, kvHeads, qkWidth, vWidth, batch } = a
  const family = attentionFamily(a)
  if (family === undefined || d.properties.capability < 80 || !(a.scale > 0)) return undefined
  const operands = [a.out, a.q, a.kv]
  const fits = (o: Operand): boolean => o.dtype === 'bf16' && o.stride % 8 === 0 && d.address(o) % 16 === 0
  if (!operands.every(fits) || a.keyOffset % 8 !== 0 || a.valueOffset % 8 !== 0) return undefined

  const [out, q] = [field(d, a.out, heads * vWidth), field(d, a.q, heads * qkWidth)]
  const kv = field(d, a.kv, Math.max(a.keyOffset + kvHeads * qkWidth, a.valueOffset + kvHeads * vWidth))
  const [sequences, positions] = [field(d, batch.rowSequence), field(d, batch.positions)]
  const table = field(d, batch.pageTable)
  const values: Record<Parameter, number> = {
    ...{ out: out.address, q: q.address, kv: kv.address, rowSequence: sequences.address, positions: positions.address },
    ...{ pageTable: table.address, plan: 0, partials: 0, counters: 0, sinks: vectorAddress(d, a.sinks, heads) },
    ...{ faults: faultAddress(d), rows: 0, outStride: out.stride, qStride: q.stride, kvStride: kv.stride },
    ...{ rowSequenceStride: sequences.stride, positionStride: positions.stride, tableStride: table.stride },
    ...{ keyOffset: a.keyOffset, valueOffset: a.valueOffset, pageSize: batch.pageSize },
    ...{ pageShift: shiftOf(batch.pageSize), kvHeads, groupHeads: heads / kvHeads, splits: 1, minTiles: 1 },
    ...{ window: a.window ?? NO_WINDOW, capacity: bounded(kv.capacity) },
    ...{ tableEntries: bounded(batch.pageTable.span.byteLength / 4 - batch.pageTable.offset) },
    scaleLog2: a.scale * Math.LOG2E,
  }
  const bind: Bind = (file, name, more) => {
    const all = { ...values, ...more }
    const ordered = NAMES.map(n => all[n])
    const programmatic = options.overlapping ?? true
    return d.kernel(file, name).bind(Object.values(ATTENTION_PARAMETERS), ordered, { programmatic })
  }
  const run = (family === 'grouped' ? groupedAttention : latentAttention)(d, a, bind, options, sequences, positions)
  return run && kernelOf([out, q, sequences, positions], run)
}

interface Partials {
  readonly partials: number
  readonly counters: number
}

type Bind = (file: string, name: string, more?: Partials) => LaunchArguments

/** Partial results and the counters of their parts; every attention of a stream shares them. */
function partialsOf(d: CudaKernels, pieces: number, capacity: number): Partials {
  const pairs = pieces * Math.min(capacity, MOST_ITEMS)
  return {
    partials: d.workspace(PARTIAL_BYTES, 'attention parts'),
    counters: d.workspace(pairs * 4, 'attention counters'),
  }
}

function cutOf(
  rows: number,
  pieces: number,
  slots: number,
  bytesAPart: number,
  mixed: boolean,
  wanted: FastAttentionOptions['cut'],
): DecodeCut {
  if (wanted === undefined) return decodeCut(rows, pieces, slots, bytesAPart, mixed)
  const how = wanted(rows)
  return { ...how, splits: Math.min(how.splits, partsRoom(how.items * pieces, bytesAPart)) }
}

function setCut(args: LaunchArguments, rows: number, cut: DecodeCut): void {
  args.set(AT.rows, rows)
  args.set(AT.splits, cut.splits)
  args.set(AT.minTiles, cut.minTiles)
}

function launchDecode(
  args: LaunchArguments,
  rows: number,
  cut: DecodeCut,
  pieces: number,
  threads: number,
  bytes: number,
) {
  setCut(args, rows, cut)
  args.launch([cut.items, pieces, cut.splits], threads, bytes)
}

const DECODE_WARPS = 4
const DECODE_STAGES = 3
const DECODE_KEYS = 16

function groupedAttention(
  d: CudaKernels,
  a: AttentionSpec,
  bind: Bind,
  { cut, prompts = PROMPTS }: FastAttentionOptions,
  sequences: Field,
  positions: Field,
): (rows: number) => void {
  const { kvHeads, qkWidth: width } = a
  const groupHeads = a.heads / kvHeads
  const pieces = decodePieces(kvHeads, groupHeads)
  const capacity = Math.min(sequences.capacity, positions.capacity)
  const decode = bind('attention_decode.cu', `attention_decode_${width}`, partialsOf(d, pieces, capacity))
  const decodeBytes = DECODE_WARPS * DECODE_STAGES * 2 * DECODE_KEYS * width * 2
  const slots =
    d.properties.sms * d.kernel('attention_decode.cu', `attention_decode_${width}`).blocksPerSm(128, decodeBytes)
  const hopper = prompts === 'warpgroup' && d.properties.capability === 90 && width === 128
  // M-rows and keys of a block, with two stages of keys and values.
  const [m, keys, threads] = hopper ? [192, 128, 384] : [128, 64, 128]
  const prefill = hopper
    ? bind('attention_prefill_sm90.cu', 'attention_prefill_128_sm90')
    : bind('attention_prefill.cu', `attention_prefill_${width}`)
  const prefillBytes = (m + 2 * 2 * keys) * width * 2
  const tileRows = prefillTileRows(m, groupHeads)
  const plan = planner(d, sequences, positions, tileRows)
  const step = attentionStep(d)
  return rows => {
    const mixed = !step.decodeOnly && rows > FEW_ROWS
    const at = mixed ? plan(rows) : 0
    decode.set(AT.plan, at)
    const how = cutOf(rows, pieces, slots, partBytes(16, width), mixed, cut)
    launchDecode(decode, rows, how, pieces, 128, decodeBytes)
    if (!mixed) return
    prefill.set(AT.plan, at)
    prefill.set(AT.rows, rows)
    prefill.launch([prefillBlocks(rows, tileRows, kvHeads), 1, 1], threads, prefillBytes)
  }
}

function latentAttention(
  d: CudaKernels,
  a: AttentionSpec,
  bind: Bind,
  { cut }: FastAttentionOptions,
  sequences: Field,
  positions: Field,
): ((rows: number) => void) | undefined {
  // Heads on the M side and keys a tile: what shared memory holds.
  const variants = [
    { m: 16, keys: 32, most: 16 },
    { m: 64, keys: 64, most: Number.POSITIVE_INFINITY },
    { m: 64, keys: 32, most: Number.POSITIVE_INFINITY },
  ]
  const bytesOf = (v: { m: number; keys: number }): number => latentSharedBytes(v.m, v.keys)
  const chosen = variants.find(v => a.heads <= v.most && bytesOf(v) <= d.properties.sharedBytesPerBlock)
  if (chosen === undefined) return undefined
  const { m, keys } = chosen
  const pieces = Math.ceil(a.heads / m)
  const [file, name] = ['attention_latent.cu', `attention_latent_${m}x${keys}`]
  const parts = partialsOf(d, pieces, Math.min(sequences.capacity, positions.capacity))
  const args = bind(file, name, parts)
  const merge = bind(file, `attention_latent_merge_${m}x${keys}`, parts)
  const slots = d.properties.sms * d.kernel(file, name).blocksPerSm(256, bytesOf(chosen))
  return rows => {
    // Every row by itself, in prompts too: from 64 heads on a row fills the M side.
    const how = cutOf(rows, pieces, slots, partBytes(m, a.vWidth), false, cut)
    launchDecode(args, rows, how, pieces, 256, bytesOf(chosen))
    if (how.splits === 1) return
    setCut(merge, rows, how)
    merge.launch([rows, a.heads, 1], 128)
  }
}

const built = new WeakMap<CudaKernels, string>()

/** Queues attention_plan when the step is not known to have it already. @returns where the plan lies */
function planner(d: CudaKernels, sequences: Field, positions: Field, tileRows: number): (rows: number) => number {
  const capacity = Math.min(sequences.capacity, positions.capacity)
  const at = d.workspace((4 + 3 * Math.min(capacity, 1 << 22)) * 4, 'attention plan')
  const args = d
    .kernel('attention_plan.cu', 'attention_plan')
    .bind(
      ['u64', 'u64', 'u64', 'i32', 'i32', 'i32', 'i32'],
      [at, sequences.address, positions.address, 0, sequences.stride, positions.stride, tileRows],
    )
  const step = attentionStep(d)
  return rows => {
    const key = `${step.generation} ${at} ${sequences.address} ${positions.address} ${rows} ${tileRows}`
    if (step.generation !== 0 && built.get(d) === key) return at
    built.set(d, key)
    args.set(3, rows)
    args.launch([1, 1, 1], 1024)
    return at
  }
}
