// Attention on tensor cores: GQA with heads of 64 or 128 and absorbed MLA of 512 + 64, bf16; any other widths and f32 go to
// attention-any.ts. Chooses and launches; the kernels are attention_plan.cu, attention_decode.cu, attention_prefill.cu and attention_latent.cu.
import type { Kernel, Operand } from '../../ops.js'
import type { CudaKernels } from '../kernels.js'
import type { LaunchArguments } from '../types.js'
import { type AnyAttentionOptions, anyAttention } from './attention-any.js'
import { type AttentionLaunch, type AttentionSpec, attentionLaunch, partialsOf, placeOf } from './attention-launch.js'
import {
  attentionFamily,
  type DecodeCut,
  decodeCut,
  decodePieces,
  latentSharedBytes,
  partBytes,
  partsRoom,
  prefillBlocks,
  prefillTileRows,
} from './attention-layout.js'
import { attentionStep } from './attention-step.js'
import { type Field, kernelOf } from './operands.js'

export type { AttentionSpec } from './attention-launch.js'

/** Up to this many rows no look at the batch's structure pays: every row is taken by itself. */
const FEW_ROWS = 4
const AT = {
  plan: placeOf('plan'),
  rows: placeOf('rows'),
  splits: placeOf('splits'),
  minTiles: placeOf('minTiles'),
}

export interface FastAttentionOptions extends AnyAttentionOptions {
  /** For measurements: how decode is cut, instead of `decodeCut`; parts beyond the memory for them are not made. */
  readonly cut?: (rows: number) => DecodeCut
  /** Which matrix instructions prompts use: of a warp (any GPU), or of a warpgroup (Hopper, heads of 128). */
  readonly prompts?: PromptKernel
}

export type PromptKernel = 'warp' | 'warpgroup'

/** The warpgroup's where there is one. */
const PROMPTS: PromptKernel = 'warpgroup'

/** @returns undefined where no kernel but the plain one takes operands and shape */
export function fastAttention(
  d: CudaKernels,
  a: AttentionSpec,
  options: FastAttentionOptions = {},
): Kernel | undefined {
  return tunedAttention(d, a, options) ?? anyAttention(d, a, options)
}

/** The kernels made for a shape. */
function tunedAttention(d: CudaKernels, a: AttentionSpec, options: FastAttentionOptions): Kernel | undefined {
  const family = attentionFamily(a)
  if (family === undefined || d.properties.capability < 80 || !(a.scale > 0)) return undefined
  const fits = (o: Operand): boolean => o.dtype === 'bf16' && o.stride % 8 === 0 && d.address(o) % 16 === 0
  if (![a.out, a.q, a.kv].every(fits) || a.keyOffset % 8 !== 0 || a.valueOffset % 8 !== 0) return undefined
  const launch = attentionLaunch(d, a, options.overlapping ?? true)
  const run = (family === 'grouped' ? groupedAttention : latentAttention)(d, a, launch, options)
  return run && kernelOf(launch.fields, run)
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
  launch: AttentionLaunch,
  { cut, prompts = PROMPTS }: FastAttentionOptions,
): (rows: number) => void {
  const { bind, sequences, positions } = launch
  const { kvHeads, qkWidth: width } = a
  const groupHeads = a.heads / kvHeads
  const pieces = decodePieces(kvHeads, groupHeads)
  const decodeKernel = d.kernel('attention_decode.cu', `attention_decode_${width}`)
  const decode = bind(decodeKernel, partialsOf(d, pieces, launch))
  const decodeBytes = DECODE_WARPS * DECODE_STAGES * 2 * DECODE_KEYS * width * 2
  const slots = d.properties.sms * decodeKernel.blocksPerSm(128, decodeBytes)
  const hopper = prompts === 'warpgroup' && d.properties.capability === 90 && width === 128
  // M-rows and keys of a block, with two stages of keys and values.
  const [m, keys, threads] = hopper ? [192, 128, 384] : [128, 64, 128]
  const prefill = hopper
    ? bind(d.kernel('attention_prefill_sm90.cu', 'attention_prefill_128_sm90'))
    : bind(d.kernel('attention_prefill.cu', `attention_prefill_${width}`))
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
  launch: AttentionLaunch,
  { cut }: FastAttentionOptions,
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
  const parts = partialsOf(d, pieces, launch)
  const kernel = d.kernel(file, name)
  const args = launch.bind(kernel, parts)
  const merge = launch.bind(d.kernel(file, `attention_latent_merge_${m}x${keys}`), parts)
  const slots = d.properties.sms * kernel.blocksPerSm(256, bytesOf(chosen))
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
