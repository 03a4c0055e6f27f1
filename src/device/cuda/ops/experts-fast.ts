// Routed experts in bf16 on a GPU. A few rows: two launches, each slot by warps that read two rows of its expert's matrices (gemv.cu).
// More: rows are sorted by expert, multiplied tile by tile (grouped_gemm_*.cu) and summed back (expert_rows.cu).
import { alignUp } from '../../memory.js'
import { elementBytes, type Kernel, type Ops } from '../../ops.js'
import type { CudaKernels } from '../kernels.js'
import { faultAddress } from './faults.js'
import { bindGemvExperts, refusesGemvExperts } from './gemv.js'
import {
  bindGroupedGemm,
  type GroupedVariant,
  groupedVariant,
  maxTilesOf,
  mostTileRows,
  refusesGrouped,
  TILE_BYTES,
} from './grouped-gemm.js'

type ExpertsSpec = Parameters<Ops['experts']>[0]

/** Up to this many slots (rows · topK) every slot reads its expert's matrices by itself (H200, docs/performance-cuda.md). */
const GEMV_SLOTS = 64
const PIECE = 1024
const GATHER_ROWS = 8
const COMBINE_COLUMNS = 128 * 8
export interface FastExpertsOptions {
  readonly variant?: GroupedVariant
  /** Slots (rows · topK) up to which each slot reads its expert's matrices by itself. */
  readonly gemvSlots?: number
}

/** Parts of the scratch of `bytes` bytes, as distances from its start; `slots` is how many rows · topK it serves. Pure. */
export function layOutScratch(
  bytes: number,
  { hidden, inter, experts }: { hidden: number; inter: number; experts: number },
) {
  const slots = Math.max(0, Math.floor(bytes / (2 * (3 * inter + hidden))))
  let end = 0
  const take = (size: number): number => {
    const at = end
    end = alignUp(at + size, 256)
    return at
  }
  const rows = take(slots * hidden * 2)
  const inner = take(slots * inter * 2)
  const place = take(slots * 4)
  const within = take(slots * 2)
  const before = take(Math.ceil(slots / PIECE) * experts * 4)
  const tiles = take(maxTilesOf(slots, experts, 'mma') * TILE_BYTES)
  return { slots, rows, inner, place, within, before, tiles, fits: end <= bytes }
}

type ScratchLayout = ReturnType<typeof layOutScratch>

/** @returns undefined where operands or shapes are not of the fast kind: the plain experts take those */
export function fastExperts(d: CudaKernels, a: ExpertsSpec, options: FastExpertsOptions = {}): Kernel | undefined {
  const { out, x, topK, gateUp, down, scratch } = a
  const hidden = down.n
  const inter = down.k
  const experts = gateUp.count
  const outType = out.dtype ?? 'f32'
  if (a.gateUpBias || a.downBias || a.activation.kind !== 'silu') return undefined
  if (d.properties.capability < 80 || x.dtype !== 'bf16' || topK > 32) return undefined
  if (hidden % 8 !== 0 || inter % 8 !== 0 || d.address(x) % 16 !== 0 || x.stride % 8 !== 0) return undefined
  if (d.address(out) % 16 !== 0 || (out.stride * elementBytes(outType)) % 16 !== 0) return undefined

  const spare = elementBytes(scratch.dtype) * scratch.offset
  const layout = layOutScratch(scratch.span.byteLength - spare, { hidden, inter, experts })
  const gemv = bindSeparate(d, a, options.gemvSlots)
  const sorted = bindSorted(d, a, layout, options.variant)
  if (!sorted && !(gemv && gemv.slots >= layout.slots)) return undefined
  return rows => {
    const slots = rows * topK
    if (slots > layout.slots)
      throw new RangeError(`${rows} rows, but the scratch of experts holds ${layout.slots / topK}`)
    if (slots === 0) return
    if (gemv && slots <= gemv.slots) gemv.run(rows)
    else sorted?.(rows)
  }
}

/** A few rows, each slot by itself: `slots` is how many rows · topK it takes. */
function bindSeparate(
  d: CudaKernels,
  { out, x, ids, weights, topK, gateUp, down }: ExpertsSpec,
  most?: number,
): { readonly slots: number; readonly run: Kernel } | undefined {
  const slots = Math.floor((most ?? Math.max(topK, GEMV_SLOTS)) / topK) * topK
  if (slots === 0) return undefined
  const rowsOf = (o: typeof x) => ({ address: d.address(o), stride: o.stride })
  const spec = {
    ...{ x: rowsOf(x), ids: rowsOf(ids), weights: rowsOf(weights), topK, gateUp, down },
    out: { ...rowsOf(out), dtype: out.dtype ?? 'f32' },
    inner: d.workspace(slots * down.k * 2, 'inner rows of separate slots'),
  }
  return refusesGemvExperts(spec) === undefined ? { slots, run: bindGemvExperts(d, spec) } : undefined
}

/** Many rows. @returns undefined where the shapes or the scratch do not suffice */
function bindSorted(
  d: CudaKernels,
  { out, x, ids, weights, topK, gateUp, down, scratch }: ExpertsSpec,
  at: ScratchLayout,
  variant = groupedVariant(d.properties.capability),
): Kernel | undefined {
  const [hidden, inter, experts] = [down.n, down.k, gateUp.count]
  const begin = d.address(scratch)
  if (!at.fits || at.slots < topK || begin % 64 !== 0) return undefined
  const [rowsAt, innerAt] = [begin + at.rows, begin + at.inner]
  const [placeAt, withinAt, beforeAt, tilesAt] = [
    begin + at.place,
    begin + at.within,
    begin + at.before,
    begin + at.tiles,
  ]
  // Counters are zero between launches, so operations with other numbers of experts must not lay them out elsewhere.
  const countsAt = d.workspace(experts * 8 + 64, `counters of ${experts} sorted experts`)
  const offsetsAt = countsAt + experts * 4
  const tileCountAt = countsAt + experts * 8
  const common = { tiles: tilesAt, tileCount: tileCountAt, maxTiles: maxTilesOf(at.slots, experts, variant), variant }
  const firstSpec = {
    ...{ ...common, weight: gateUp, gated: true },
    x: { address: rowsAt, stride: hidden, rows: at.slots },
    out: { address: innerAt, stride: inter },
  }
  const secondSpec = {
    ...{ ...common, weight: down, gated: false },
    x: { address: innerAt, stride: inter, rows: at.slots },
    // The rows that went in are not needed any more.
    out: { address: rowsAt, stride: hidden },
  }
  if (refusesGrouped(firstSpec) !== undefined || refusesGrouped(secondSpec) !== undefined) return undefined
  const idsAt = d.address(ids)
  const count = d
    .kernel('expert_rows.cu', 'expert_count')
    .bind(
      ['u64', 'i32', 'i32', 'i32', 'i32', 'u64', 'u64', 'u64', 'u64'],
      [idsAt, ids.stride, topK, 0, experts, countsAt, beforeAt, withinAt, faultAddress(d)],
      { programmatic: true },
    )
  const tiles = d
    .kernel('expert_rows.cu', 'expert_tiles')
    .bind(
      ['u64', 'u64', 'i32', 'i32', 'u64', 'u64'],
      [countsAt, offsetsAt, experts, mostTileRows(variant), tilesAt, tileCountAt],
      { programmatic: true },
    )
  const gather = d
    .kernel('expert_rows.cu', 'expert_gather')
    .bind(
      ['u64', 'u64', 'i32', 'u64', 'i32', 'i32', 'i32', 'i32', 'u64', 'u64', 'u64', 'u64', 'u64'],
      [
        ...[d.address(x), x.stride, hidden, idsAt, ids.stride, topK, 0, experts],
        ...[offsetsAt, beforeAt, withinAt, placeAt, rowsAt],
      ],
      { programmatic: true },
    )
  const first = bindGroupedGemm(d, firstSpec)
  const second = bindGroupedGemm(d, secondSpec)
  const combine = d
    .kernel('expert_rows.cu', `expert_combine_${out.dtype ?? 'f32'}`)
    .bind(
      ['u64', 'u64', 'u64', 'u64', 'u64', 'i32', 'u64', 'i32', 'i32', 'i32', 'i32', 'u64'],
      [
        ...[d.address(out), out.stride, rowsAt, hidden, idsAt, ids.stride, d.address(weights), weights.stride],
        ...[topK, experts, hidden, placeAt],
      ],
      { programmatic: true },
    )
  return rows => {
    const slots = rows * topK
    count.set(3, slots)
    count.launch([Math.ceil(slots / PIECE), 1, 1], 256, experts * 4)
    tiles.launch([1, 1, 1], 1024)
    gather.set(6, rows)
    gather.launch([Math.ceil(rows / GATHER_ROWS), 1, 1], 256)
    const most = maxTilesOf(slots, experts, variant)
    first(most)
    second(most)
    combine.launch([rows, Math.ceil(hidden / COMBINE_COLUMNS), 1], 128)
  }
}
