// Grouped products over many rows on a GPU: rows lie tile by tile, a tile has one group. Which tiles there are is read on the device, so
// nothing here depends on a step's routing. Kernels: grouped_gemm_sm90.cu, grouped_gemm_mma.cu.
import type { PackedMatrix } from '../../ops.js'
import type { CudaKernels } from '../kernels.js'

/** Bytes of a tile's record: i32 group, first row, rows, 0. */
export const TILE_BYTES = 16

/** `sm90`: Hopper's tensor cores and bulk copies; `mma`: for older GPUs, and the reference on the device. */
export type GroupedVariant = 'sm90' | 'mma'

/** Rows of a tile, at most. */
const MOST_ROWS = { sm90: 288, mma: 128 } as const
/** Columns of `out` that a block makes. */
const WIDTH = { sm90: { plain: 128, gated: 64 }, mma: { plain: 64, gated: 32 } } as const
const THREADS = { sm90: 384, mma: 256 } as const
/** sm90: 4 stages, results beside them, room to align them to 1 KiB, barriers. */
const SHARED_BYTES = 4 * (52 << 10) + (16 << 10) + 1024 + 64
/** sm90: row tiles that one strip of the walk over tiles holds, so that those of a long group read its weights together. */
const STRIP = 2

/** What a GPU of this capability (90: Hopper) uses where nobody asks for another. */
export const groupedVariant = (capability: number): GroupedVariant => (capability === 90 ? 'sm90' : 'mma')

/** Most rows of a tile for the kernel that will take it. */
export const mostTileRows = (variant: GroupedVariant): number => MOST_ROWS[variant]

/** Rows of each tile of a group but the last; the rule of kernels/cuda/row_tiles.cuh. */
export const rowsOfTile = (rows: number, most: number): number =>
  rows === 0 ? most : Math.ceil(Math.ceil(rows / Math.ceil(rows / most)) / 16) * 16

export interface GroupedGemmSpec {
  /** bf16 rows, k elements each; `rows` is how many the memory holds: no tile reaches past them. */
  readonly x: { readonly address: number; readonly stride: number; readonly rows: number }
  readonly weight: PackedMatrix
  /** bf16 rows of weight.n columns; gated: of weight.n / 2, out = silu(gate) · up with the gate rows first. */
  readonly out: { readonly address: number; readonly stride: number }
  readonly gated: boolean
  /** Device memory: tile records, and an i32 that says how many of them count. */
  readonly tiles: number
  readonly tileCount: number
  /** No more tiles than this come; only the mma variant's grid needs it. */
  readonly maxTiles: number
  readonly variant?: GroupedVariant
  readonly strip?: number
}

/** Bytes between rows and to the first one that wide loads and bulk copies want. */
const aligned = (address: number, strideElements: number): boolean => address % 16 === 0 && strideElements % 8 === 0

/** Why the fast kernels cannot take these shapes; undefined when they can. */
export function refusesGrouped({ x, weight, out, gated }: GroupedGemmSpec): string | undefined {
  const n = gated ? weight.n / 2 : weight.n
  if (weight.kind !== 'bf16') return `weights are ${weight.kind}`
  if (weight.k % 8 !== 0 || n % 8 !== 0) return `${n} columns of ${weight.k} are not in eights`
  if (!aligned(x.address, x.stride) || !aligned(out.address, out.stride)) return 'rows are not 16-byte aligned'
  if (weight.strideBytes % 16 !== 0) return 'matrices are not 16-byte aligned'
  return undefined
}

/** Queues the product; fewer tiles than it was bound for where a launch has fewer rows. */
type LaunchTiles = (maxTiles?: number) => void

export function bindGroupedGemm(d: CudaKernels, spec: GroupedGemmSpec): LaunchTiles {
  return (spec.variant ?? groupedVariant(d.properties.capability)) === 'mma' ? bindMma(d, spec) : bindSm90(d, spec)
}

function bindSm90(d: CudaKernels, spec: GroupedGemmSpec): LaunchTiles {
  const { x, weight, out, gated, tiles, tileCount } = spec
  const n = gated ? weight.n / 2 : weight.n
  const MAP = { dtype: 'bf16', l2Promotion: '256B' } as const
  const boxOfRows = (rows: number) =>
    d.tensorMap({
      ...{ ...MAP, address: x.address, swizzle: '128B' },
      ...{ sizes: [weight.k, x.rows], strides: [x.stride * 2], box: [64, rows] },
    })
  const boxOfResults = (rows: number) =>
    d.tensorMap({
      ...{ ...MAP, address: out.address, sizes: [n, x.rows], strides: [out.stride * 2] },
      ...{ box: [gated ? 32 : 64, rows], swizzle: gated ? '64B' : '128B' },
    })
  const rowBytes = weight.k * 2
  // Gate and up rows come in turns of 8: they are seen as [blocks of 8, gate or up, 8].
  const weights = gated
    ? {
        sizes: [weight.k, 8, 2, n / 8, weight.count],
        strides: [rowBytes, rowBytes * n, rowBytes * 8, weight.strideBytes],
        box: [64, 8, 2, 8, 1],
      }
    : { sizes: [weight.k, n, weight.count], strides: [rowBytes, weight.strideBytes], box: [64, 128, 1] }
  const args = d
    .kernel('grouped_gemm_sm90.cu', gated ? 'grouped_gemm_gated' : 'grouped_gemm')
    .bind(
      [
        ...(['tensorMap', 'tensorMap', 'tensorMap', 'tensorMap', 'tensorMap'] as const),
        ...(['u64', 'u64', 'u64', 'u64', 'i32', 'i32', 'i32'] as const),
      ],
      [
        ...[boxOfRows(32), boxOfRows(128)],
        d.tensorMap({ ...MAP, address: d.addressOf(weight.span), swizzle: '128B', ...weights }),
        ...[boxOfResults(32), boxOfResults(8), out.address, out.stride],
        ...[tiles, tileCount, n, weight.k, spec.strip ?? STRIP],
      ],
      { programmatic: true },
    )
  const columns = Math.ceil(n / WIDTH.sm90[gated ? 'gated' : 'plain'])
  return (maxTiles = spec.maxTiles) => {
    // Blocks without a tile leave at once; fewer of them start sooner.
    const blocks = Math.min(d.properties.sms, maxTiles * columns)
    if (maxTiles > 0) args.launch([blocks, 1, 1], THREADS.sm90, SHARED_BYTES)
  }
}

function bindMma(d: CudaKernels, spec: GroupedGemmSpec): LaunchTiles {
  const { x, weight, out, gated, tiles, tileCount } = spec
  const n = gated ? weight.n / 2 : weight.n
  const args = d
    .kernel('grouped_gemm_mma.cu', gated ? 'grouped_gemm_mma_gated' : 'grouped_gemm_mma')
    .bind(
      ['u64', 'u64', 'u64', 'u64', 'u64', 'u64', 'u64', 'u64', 'i32', 'i32'],
      [
        ...[x.address, x.stride, d.addressOf(weight.span), weight.strideBytes, out.address, out.stride],
        ...[tiles, tileCount, n, weight.k],
      ],
      { programmatic: true },
    )
  const columns = Math.ceil(n / WIDTH.mma[gated ? 'gated' : 'plain'])
  return (maxTiles = spec.maxTiles) => {
    if (maxTiles > 0) args.launch([columns, maxTiles, 1], THREADS.mma)
  }
}

/** Most tiles that `slots` rows of `groups` groups can make. */
export const maxTilesOf = (slots: number, groups: number, variant: GroupedVariant): number =>
  Math.floor(slots / MOST_ROWS[variant]) + Math.min(groups, slots)
