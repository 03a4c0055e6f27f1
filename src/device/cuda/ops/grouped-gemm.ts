// Grouped products over many rows on a GPU: rows lie tile by tile, a tile of at most 128 rows has one group. Which tiles there are
// is read on the device, so nothing here depends on a step's routing. Kernels: grouped_gemm_sm90.cu, grouped_gemm_mma.cu.
import type { PackedMatrix } from '../../ops.js'
import type { CudaKernels } from '../kernels.js'
import type { LaunchArguments } from '../types.js'

/** Rows of a tile, at most. */
export const TILE_ROWS = 128
/** Bytes of a tile's record: i32 group, first row, rows, 0. */
export const TILE_BYTES = 16

/** Columns of `out` that a block of the sm_90 kernel makes. */
const WIDTH = { plain: 256, gated: 128 } as const
const MMA_WIDTH = { plain: 64, gated: 32 } as const
const THREADS = { sm90: 384, mma: 256 } as const
/** 4 stages of 48 KiB, room to align them to 1 KiB, barriers. */
const SM90_SHARED_BYTES = 4 * (48 << 10) + 1024 + 64
/** Row tiles that one strip of the walk over tiles holds. 8 by 16 column tiles are about a wave of 132 blocks. */
const STRIP = 8

/** `sm90`: a block a tile; `pair`: clusters of two blocks share weights; `mma`: the slow path and reference. */
export type GroupedVariant = 'sm90' | 'pair' | 'mma'

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

/** @returns queues the product; `maxTiles` may be lowered for a launch with fewer rows (mma only) */
export function bindGroupedGemm(d: CudaKernels, spec: GroupedGemmSpec): (maxTiles?: number) => void {
  const { x, weight, out, gated, tiles, tileCount } = spec
  const n = gated ? weight.n / 2 : weight.n
  const variant = spec.variant ?? (d.properties.capability === 90 ? 'sm90' : 'mma')
  const shape = gated ? 'gated' : 'plain'
  if (variant === 'mma') {
    const kernel = d.kernel('grouped_gemm_mma.cu', gated ? 'grouped_gemm_mma_gated' : 'grouped_gemm_mma')
    const args: LaunchArguments = kernel.bind(
      ['u64', 'u64', 'u64', 'u64', 'u64', 'u64', 'u64', 'u64', 'i32', 'i32'],
      [
        x.address,
        x.stride,
        d.addressOf(weight.span),
        weight.strideBytes,
        out.address,
        out.stride,
        tiles,
        tileCount,
        n,
        weight.k,
      ],
      { programmatic: true },
    )
    const columns = Math.ceil(n / MMA_WIDTH[shape])
    return (maxTiles = spec.maxTiles) => {
      if (maxTiles > 0) args.launch([columns, maxTiles, 1], THREADS.mma)
    }
  }
  const strip = spec.strip ?? STRIP
  const pair = variant === 'pair'
  const name = `grouped_gemm${gated ? '_gated' : ''}${pair ? '_pair' : ''}`
  const box = [64, 128]
  const args = d.kernel('grouped_gemm_sm90.cu', name).bind(
    ['tensorMap', 'tensorMap', 'u64', 'u64', 'u64', 'u64', 'i32', 'i32', 'i32'],
    [
      d.tensorMap({
        address: x.address,
        dtype: 'bf16',
        sizes: [weight.k, x.rows],
        strides: [x.stride * 2],
        box,
        swizzle: '128B',
        l2Promotion: '256B',
      }),
      d.tensorMap({
        address: d.addressOf(weight.span),
        dtype: 'bf16',
        sizes: [weight.k, weight.n, weight.count],
        strides: [weight.k * 2, weight.strideBytes],
        box: [...box, 1],
        swizzle: '128B',
        l2Promotion: '256B',
      }),
      out.address,
      out.stride,
      tiles,
      tileCount,
      n,
      weight.k,
      pair ? Math.max(1, strip >> 1) : strip,
    ],
    { programmatic: true },
  )
  const columns = Math.ceil(n / WIDTH[shape])
  const most = pair ? d.properties.sms & ~1 : d.properties.sms
  return (maxTiles = spec.maxTiles) => {
    // Blocks without a tile leave at once; fewer of them start sooner.
    const wanted = pair ? 2 * Math.ceil(maxTiles / 2) * columns : maxTiles * columns
    if (maxTiles > 0) args.launch([Math.min(most, wanted), 1, 1], THREADS.sm90, SM90_SHARED_BYTES)
  }
}

/** Most tiles that `slots` rows of `groups` groups can make. */
export const maxTilesOf = (slots: number, groups: number): number =>
  Math.floor(slots / TILE_ROWS) + Math.min(groups, slots)
