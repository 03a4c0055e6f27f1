// Attention of any widths, f32 or bf16: a kernel compiled for the shape (attention_any_mma.cu, attention_any_lanes.cu).
import type { Kernel } from '../../ops.js'
import type { CudaKernels } from '../kernels.js'
import { ANY_LEAST_TILES, type AnyKernel, anyBlocks, anyKernel, anyParts, isInside } from './attention-any-layout.js'
import {
  type AttentionSpec,
  attentionLaunch,
  MOST_ITEMS,
  partialsOf,
  placeOf,
  tableEntries,
} from './attention-launch.js'
import { partsRoom } from './attention-layout.js'
import { kernelOf, typeOf } from './operands.js'

const THREADS = 128
const AT = { rows: placeOf('rows') }

export interface AnyAttentionOptions {
  /** For measurements and tests: blocks that share the parts of a row, instead of `anyBlocks`; changes no bit. */
  readonly blocks?: (rows: number) => number
  /** Kernels start while the one before them ends (programmatic dependent launch); so they do unless this says no. */
  readonly overlapping?: boolean
}

/** @returns undefined where no kernel takes the shape or the types differ: plain attention says so, or takes them */
export function anyAttention(d: CudaKernels, a: AttentionSpec, options: AnyAttentionOptions = {}): Kernel | undefined {
  const kernel = anyKernelOf(d, a)
  if (kernel === undefined || d.properties.capability < 80) return undefined
  const { pieces, sharedBytes, partBytes } = kernel
  const launch = attentionLaunch(d, a, options.overlapping ?? true)
  const parts = mostParts(a)
  const fn = d.kernel(kernel.file, kernel.name, { defines: kernel.defines })
  const more = { splits: parts, minTiles: ANY_LEAST_TILES }
  const args = launch.bind(fn, { ...partialsOf(d, pieces, launch), ...more })
  const slots = d.properties.sms * fn.blocksPerSm(THREADS, sharedBytes)
  return kernelOf(launch.fields, rows => {
    const pairs = rows * pieces
    const room = rows <= MOST_ITEMS ? partsRoom(pairs, partBytes) : 1
    const wanted = options.blocks?.(rows) ?? anyBlocks(pairs, slots, parts, room)
    args.set(AT.rows, rows)
    args.launch([rows, pieces, room < parts ? 1 : wanted], THREADS, sharedBytes)
  })
}

/** Parts of the longest row that the page table, or the window, allows. */
function mostParts(a: AttentionSpec): number {
  const { pageTable, pageSize } = a.batch
  const positions = (pageTable.stride || tableEntries(a)) * pageSize
  return Math.max(1, anyParts(Math.min(positions, a.window ?? positions)))
}

/** The kernel that an operation binds. */
export function anyKernelOf(d: CudaKernels, a: AttentionSpec): AnyKernel | undefined {
  const type = typeOf(a.q)
  if (typeOf(a.out) !== type || typeOf(a.kv) !== type) return undefined
  const bytes = type === 'bf16' ? 2 : 4
  const read = [a.qkWidth, a.keyOffset, a.q.stride, a.kv.stride, ...(isInside(a) ? [] : [a.vWidth, a.valueOffset])]
  const fits = (n: number): boolean =>
    n * bytes <= 16 &&
    read.every(v => v % n === 0) &&
    [a.q, a.kv].every(operand => d.address(operand) % (n * bytes) === 0)
  const access = ([8, 4, 2] as const).find(fits) ?? 1
  const quads = a.vWidth % 4 === 0 && a.out.stride % 4 === 0 && d.address(a.out) % (4 * bytes) === 0
  return anyKernel({ ...a, type, access, quads }, d.properties)
}
