// Products of few rows on a GPU, bound by reading the weights: how the work is laid out (pure) and its launch.
// Kernel: gemm_skinny_sm90.cu, which explains units, stages and items.
import type { Kernel, PackedMatrix } from '../../ops.js'
import type { CudaKernels } from '../kernels.js'
import { faultAddress } from './faults.js'

/** Rows of x that one pass over the weights serves. */
export type SkinnyCapacity = 8 | 16 | 32

const CHUNK = 512
/** Two boxes of 8 rows. */
const STAGE_BYTES = 16 * CHUNK * 2
/** To align the ring. */
const SLACK_BYTES = 1024
const WARPS = 8
const PART_FLOATS = 20
const THREADS = (WARPS + 1) * 32
const MAX_STAGES = 12
/** Below three stages in flight the ring does not hide the memory's latency. */
const MIN_STAGES = 3
/** Ids, list places and items are 16-bit numbers in shared memory. */
const MAX_SLOTS = 65535

export interface SkinnyPlan {
  readonly capacity: SkinnyCapacity
  readonly stages: number
  readonly sharedBytes: number
  /** Rows of W a unit holds: 8 where 16 would leave the last round of blocks emptier. */
  readonly tileRows: 8 | 16
  readonly itemsRoom: number
}

export interface SkinnySize {
  /** dense: rows. masked: most rows of a group. routed: rows · topK. */
  readonly count: number
  readonly experts: number
  readonly mode: 'dense' | 'masked' | 'routed'
  /** Output columns: of a gated product, half the rows of W. */
  readonly n: number
  readonly k: number
  readonly gated: boolean
  readonly sms: number
  readonly sharedBytesPerBlock: number
}

/** Pure. @returns undefined where the kernel cannot take the sizes */
export function planSkinny(size: SkinnySize): SkinnyPlan | undefined {
  const { count, experts, mode, n, k, gated, sms } = size
  if (k % 64 !== 0 || count > MAX_SLOTS || experts > MAX_SLOTS) return undefined
  const mean = mode === 'routed' ? count / experts : count
  // Routed rows spread unevenly: room for about twice the mean.
  const wanted = mode === 'routed' ? (mean <= 3 ? 8 : mean <= 10 ? 16 : 32) : count <= 8 ? 8 : count <= 16 ? 16 : 32
  const items = (capacity: number): number =>
    mode === 'dense'
      ? Math.ceil(count / capacity)
      : mode === 'masked'
        ? experts * Math.ceil(count / capacity)
        : Math.min(count, experts + Math.floor(count / capacity))
  for (const capacity of ([32, 16, 8] as const).filter(c => c <= wanted)) {
    const itemsRoom = items(capacity)
    const fixed =
      SLACK_BYTES +
      capacity * (2 * k + 16) +
      (capacity === 32 ? 1 : 2) * WARPS * capacity * PART_FLOATS * 4 +
      16 * MAX_STAGES +
      64 +
      itemsRoom * 6 +
      (mode === 'routed' ? (WARPS + 1) * experts * 2 + count * 4 : 0)
    const stages = Math.min(MAX_STAGES, Math.floor((size.sharedBytesPerBlock - fixed) / STAGE_BYTES))
    if (stages < MIN_STAGES) continue
    const used = mode === 'routed' ? Math.min(experts, count) : itemsRoom
    const rowsPerBlock = (rows: number): number => rows * Math.ceil((used * Math.ceil(n / rows)) / sms)
    const tileRows = !gated && rowsPerBlock(8) < rowsPerBlock(16) ? 8 : 16
    return { capacity, stages, sharedBytes: fixed + stages * STAGE_BYTES, tileRows, itemsRoom }
  }
  return undefined
}

export interface SkinnySpec {
  readonly x: { readonly address: number; readonly stride: number }
  readonly weight: PackedMatrix
  readonly out: { readonly address: number; readonly stride: number; readonly dtype: 'f32' | 'bf16' }
  readonly gated: boolean
  /** f32, dense only. */
  readonly bias?: number
  readonly accumulate?: boolean
  readonly groups:
    | { readonly mode: 'dense' }
    /** Group g's rows of x and out begin at g · room; `counts` is i32 [groups] on the device. */
    | { readonly mode: 'masked'; readonly counts: number; readonly room: number }
    /** ids: i32 rows of topK, `stride` apart. Out's row is row · topK + choice; x's is that divided by `xDivisor`. */
    | {
        readonly mode: 'routed'
        readonly ids: number
        readonly stride: number
        readonly topK: number
        readonly xDivisor: number
      }
}

/** Why the kernel cannot take these shapes; undefined when it can. */
export function refusesSkinny({ x, weight, out, gated }: SkinnySpec): string | undefined {
  if (weight.kind !== 'bf16') return `weights are ${weight.kind}`
  if (weight.k % 64 !== 0) return `${weight.k} inputs are not in multiples of 64`
  if (x.address % 16 !== 0 || x.stride % 8 !== 0) return 'rows are not 16-byte aligned'
  if (weight.strideBytes % (2 * weight.k) !== 0) return 'matrices do not begin whole rows apart'
  if (gated && out.dtype !== 'bf16') return 'a gated product is stored as bf16'
  return undefined
}

const MODE = { dense: 0, masked: 1, routed: 2 } as const
const [COUNT, TILE_ROWS, STAGES, ITEMS_ROOM] = [9, 16, 17, 19]

/**
 * @param most rows that will be asked for at most
 * @returns queues the product for `rows` rows (masked: for what the counters say, of at most `rows` each); undefined where the
 * sizes do not fit
 */
export function bindSkinny(d: CudaKernels, spec: SkinnySpec, most: number): Kernel | undefined {
  const { x, weight, out, gated, groups } = spec
  const n = gated ? weight.n / 2 : weight.n
  const routed = groups.mode === 'routed' ? groups : undefined
  const divisor = groups.mode === 'routed' ? groups.xDivisor : groups.mode === 'masked' ? groups.room : 1
  const index = groups.mode === 'routed' ? groups.ids : groups.mode === 'masked' ? groups.counts : 0
  const { sms, sharedBytesPerBlock } = d.properties
  const size = { experts: weight.count, mode: groups.mode, n, k: weight.k, gated, sms, sharedBytesPerBlock }
  const rowsOfMatrix = weight.strideBytes / (2 * weight.k)
  // [k / 64][rows][64]: one copy takes 8 rows by 512 of k.
  const map = () =>
    d.tensorMap({
      address: d.addressOf(weight.span),
      dtype: 'bf16',
      sizes: [64, (weight.count - 1) * rowsOfMatrix + weight.n, weight.k / 64],
      strides: [weight.k * 2, 128],
      box: [64, 8, 8],
      swizzle: '128B',
      l2Promotion: '256B',
    })
  const bind = (capacity: SkinnyCapacity) =>
    d
      .kernel('gemm_skinny_sm90.cu', `skinny${capacity}${gated ? '_gated' : ''}_${out.dtype}`)
      .bind(
        [
          'tensorMap',
          ...Array.from({ length: 7 }, () => 'u64' as const),
          ...Array.from({ length: 13 }, () => 'i32' as const),
        ],
        [
          ...[map(), x.address, x.stride, out.address, out.stride, spec.bias ?? 0, index, faultAddress(d)],
          ...[MODE[groups.mode], 0, weight.count, routed?.topK ?? 1, routed?.stride ?? 0, divisor],
          ...[n, weight.k, 16, 0, spec.accumulate ? 1 : 0, 0, rowsOfMatrix],
        ],
      )
  // What fits for the most rows fits for fewer.
  if (planSkinny({ ...size, count: most * (routed?.topK ?? 1) }) === undefined) return undefined
  // One binding a capacity, made here: nothing is compiled or allocated when rows come.
  const args = { 8: bind(8), 16: bind(16), 32: bind(32) }
  const plans = new Map<number, SkinnyPlan | undefined>()
  return rows => {
    const count = routed ? rows * routed.topK : rows
    if (count === 0) return
    if (!plans.has(count)) plans.set(count, planSkinny({ ...size, count }))
    const plan = plans.get(count)
    if (plan === undefined) throw new RangeError(`${rows} rows, but at most ${most} were to come`)
    const launch = args[plan.capacity]
    launch.set(COUNT, count)
    launch.set(TILE_ROWS, plan.tileRows)
    launch.set(STAGES, plan.stages)
    launch.set(ITEMS_ROOM, plan.itemsRoom)
    launch.launch([sms, 1, 1], THREADS, plan.sharedBytes)
  }
}
