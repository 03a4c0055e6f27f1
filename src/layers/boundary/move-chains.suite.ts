// Runs chains of moves on real programs, arenas and collectives, all ranks in one thread, and says what one rank would hold.
// Values are small integers, so that every sum is exact in f32; padding rows are NaN, so that one that leaks is seen.
// A chain can end in a whole boundary: what the last stage hands over joins a residual and is normalised on its way.
import { lendExchange, ShmCommunicator } from '../../comm/index.js'
import { createCpuDevice } from '../../device/cpu/index.js'
import { f32View, HostMemoryLender, subspan } from '../../device/memory.js'
import {
  buildTopology,
  type GroupName,
  groupOf,
  type ParallelSizes,
  type RankCoordinates,
} from '../../parallel/index.js'
import {
  bindProgram,
  bufferBytes,
  collectivePayloads,
  columns,
  type Program,
  ProgramBuilder,
  type ProgramGroup,
  planArena,
  type Ref,
  runSequential,
} from '../../program/index.js'
import { ControlBlock } from '../../runtime/control.js'
import { interleave } from '../../runtime/interleave.js'
import { stepRows } from '../../scheduler/index.js'
import {
  Boundary,
  type DpPaddingMode,
  type Layout,
  type MoveContext,
  moveRows,
  type Placed,
  rowsIn,
  type SumGroup,
} from './index.js'

/** One stage: every rank adds its own numbers to what it holds, the result owes `owes`, and moves to `to`. */
export interface ChainStage {
  readonly owes: SumGroup | null
  readonly to: Layout
}

export interface Chain {
  readonly sizes: ParallelSizes
  readonly padding: DpPaddingMode
  readonly sumLenGather: MoveContext['sumLenGather']
  /** By attention-DP rank. */
  readonly tokens: readonly number[]
  readonly width: number
  /** Layout in which the first stage holds its rows. */
  readonly start: Layout
  readonly stages: readonly ChainStage[]
  /** How the last stage's value moves on: as it is, or through a boundary with or without fused operations. */
  readonly end: 'move' | 'boundary' | 'unfused boundary'
  /** Of the order in which ranks move. */
  readonly seed: number
}

const OPS = createCpuDevice({ kernels: 'reference' }).ops
const EPS = 1e-5
const NORM = 'norm'

/** Norm weights, which f32 holds exactly. */
const weightAt = (column: number): number => 0.5 + 0.25 * column

function weightsOf(lender: HostMemoryLender, width: number) {
  const span = lender.lend(4 * width, 'norm weights')
  f32View(span).set(Array.from({ length: width }, (_, c) => weightAt(c)))
  return { matrices: {}, vectors: { [NORM]: { length: width, span } }, spans: [], bytes: 0 }
}

export const sizesOf = (attnDp: number, attnTp: number, ep = 1): ParallelSizes => {
  const tp = attnDp * attnTp
  return { tp, attnDp, attnCp: 1, attnTp, moeDp: 1, ep, moeTp: tp / ep, nodes: 1 }
}

/** What member `member` of the stage's sum adds for a row; of a complete value every rank is member 0. */
const addend = (stage: number, member: number, dp: number, row: number, column: number): number =>
  ((31 * stage + 17 * member + 7 * dp + 5 * row + 3 * column) % 13) - 6

const startValue = (dp: number, row: number, column: number): number => ((11 * dp + 3 * row + column) % 9) - 4

const residualValue = (dp: number, row: number, column: number): number => ((13 * dp + 5 * row + 7 * column) % 11) - 3

/** Members of the group that a sum goes over, and which of them a rank is. */
function membership({ sizes }: Chain, owes: SumGroup | null, rank: number): { member: number; members: number } {
  if (owes === null) return { member: 0, members: 1 }
  return owes === 'ATTN_TP'
    ? { member: rank % sizes.attnTp, members: sizes.attnTp }
    : { member: rank, members: sizes.tp }
}

/** What a single rank holds in the end for a row of a DP rank. */
export function singleRankRow(chain: Chain, dp: number, row: number): number[] {
  const values = Array.from({ length: chain.width }, (_, column) => singleRankValue(chain, dp, row, column))
  if (chain.end === 'move') return values
  const sums = values.map((v, column) => v + residualValue(dp, row, column))
  const scale = 1 / Math.sqrt(sums.reduce((a, v) => a + v * v, 0) / chain.width + EPS)
  return sums.map((v, column) => Math.fround(v * scale * weightAt(column)))
}

/** The same without a boundary. */
export function singleRankValue(chain: Chain, dp: number, row: number, column: number): number {
  let value = startValue(dp, row, column)
  chain.stages.forEach(({ owes }, stage) => {
    const { members } = membership(chain, owes, 0)
    const parts = Array.from({ length: members }, (_, m) => value + addend(stage, m, dp, row, column))
    value = parts.reduce((a, b) => a + b, 0)
  })
  return value
}

/** Rows that a rank holds in a layout, padding included, in order. Counted here by hand, not by the product's functions. */
export function rowsHeld(
  chain: Chain,
  layout: Layout,
  me: RankCoordinates,
): { dp: number; row: number; pad: boolean }[] {
  const longest = Math.max(...chain.tokens)
  const all = chain.tokens.map((count, dp) =>
    Array.from({ length: chain.padding === 'MAX_LEN' ? longest : count }, (_, row) => ({ dp, row, pad: row >= count })),
  )
  if (!layout.includes('ATTN_DP') && chain.sizes.attnDp > 1) return all.flat()
  const own = all[me.attnDp]!
  if (!layout.includes('ATTN_TP') || chain.sizes.attnTp === 1) return own
  // Almost equal pieces, the longer ones first.
  const { attnTp } = chain.sizes
  const sizes = Array.from({ length: attnTp }, (_, m) => Math.ceil((own.length - m) / attnTp))
  const from = sizes.slice(0, me.attnTp).reduce((a, b) => a + b, 0)
  return own.slice(from, from + sizes[me.attnTp]!)
}

function buildChain(chain: Chain, me: RankCoordinates): { program: Program; result: Ref; inputs: readonly Layout[] } {
  const b = new ProgramBuilder()
  const { sizes, padding, sumLenGather, width } = chain
  const ctx: MoveContext = { builder: b, sizes, padding, sumLenGather, attnTpIndex: me.attnTp }
  const input = (name: string, layout: Layout, total: number) =>
    b.buffer({ name, kind: 'input', dtype: 'f32', rows: rowsIn(sizes, layout), columns: total })
  // The rows lie between other columns, as hidden rows lie beside expert ids.
  let at = columns(input('start', chain.start, width + 3), 2, width)
  let layout = chain.start
  const inputs: Layout[] = []
  const last = chain.stages.length - 1
  const throughBoundary = (placed: Placed, to: Layout): Ref => {
    const moves = { ...ctx, unfused: chain.end === 'unfused boundary' }
    const boundary = new Boundary(moves, input('residual', ['ATTN_DP'], width), EPS)
    boundary.write(placed)
    return boundary.read(NORM, to, 'read')
  }
  chain.stages.forEach(({ owes, to }, i) => {
    const rows = rowsIn(sizes, layout)
    inputs.push(layout)
    const value = b.arena(`partial${i}`, width, rows)
    b.emit('add', { out: value, a: at, b: input(`addend${i}`, layout, width) }, { rows, label: `stage ${i}` })
    const placed: Placed = { value, layout, owes }
    at = i === last && chain.end !== 'move' ? throughBoundary(placed, to) : moveRows(ctx, placed, to, `move${i}`)
    layout = to
  })
  const longest = Math.max(...chain.tokens, 1)
  const sum = longest * chain.tokens.length
  const none = { received: 0, logitRows: 0, gatheredLogits: 0 }
  const bounds = { tokens: longest, padded: longest, gathered: sum, slice: longest, ...none }
  return { program: b.build('chain', bounds), result: at, inputs }
}

const GROUPS: Record<ProgramGroup, GroupName> = { tp: 'world', attnDp: 'attnDp', attnTp: 'attnTp' }
const STEP = 1

/** Runs the chain. @returns by rank the rows it holds in the last layout, [rows][width] */
export function runChain(chain: Chain): number[][][] {
  const topology = buildTopology(chain.sizes)
  const built = topology.ranks.map(me => buildChain(chain, me))
  const control = ControlBlock.create(chain.sizes.tp)
  const lender = new HostMemoryLender()
  const payloads = collectivePayloads(built.map(x => x.program))
  const exchanges = new Map<string, ReturnType<typeof lendExchange>>()
  const communicator = (kind: ProgramGroup, index: number, rank: number) => {
    const ranks = groupOf(topology, GROUPS[kind], rank)
    const key = `${kind} ${ranks.join()}`
    const memory = exchanges.get(key) ?? lendExchange(lender, kind, ranks.length, payloads[kind])
    exchanges.set(key, memory)
    const made = new ShmCommunicator(control, { name: kind, index, ranks, memory }, rank)
    made.beginStep(STEP)
    return made
  }
  const plan = { numTokens: chain.tokens, numLogitRows: chain.tokens.map(() => 0), dpPadding: chain.padding }
  const weights = weightsOf(lender, chain.width)
  const ranks = built.map(({ program, inputs, result }, rank) => {
    const me = topology.ranks[rank]!
    const buffers = place(program, lender)
    fill(buffers['start']!, chain.width + 3, 2, chain, chain.start, me, startValue)
    inputs.forEach((layout, i) => {
      const { member } = membership(chain, chain.stages[i]!.owes, rank)
      fill(buffers[`addend${i}`]!, chain.width, 0, chain, layout, me, (dp, row, column) =>
        addend(i, member, dp, row, column),
      )
    })
    if (buffers['residual']) fill(buffers['residual'], chain.width, 0, chain, ['ATTN_DP'], me, residualValue)
    const groups = {
      tp: communicator('tp', 0, rank),
      attnDp: communicator('attnDp', 1, rank),
      attnTp: communicator('attnTp', 2, rank),
    }
    const unused = { ropeTables: {}, idTables: { spans: {}, columns: {} }, dispatchers: {} }
    const bound = bindProgram({ ops: OPS, program, weights, buffers, groups, ...unused })
    const step = runSequential(bound, stepRows(plan, chain.sizes, me), control.statusWriter(rank))
    return { step, buffers, program, result, me }
  })
  interleave(
    ranks.map(r => r.step),
    chain.seed,
  )
  const last = chain.stages.at(-1)?.to ?? chain.start
  return ranks.map(({ buffers, program, result, me }) => {
    const stride = program.buffers.find(s => s.name === result.buffer)!.columns
    const values = f32View(buffers[result.buffer]!)
    return rowsHeld(chain, last, me).map((_, r) => {
      const from = r * stride + result.column
      return [...values.subarray(from, from + chain.width)]
    })
  })
}

/** Inputs get memory of their own, everything else lies in one arena full of NaN. */
function place(program: Program, lender: HostMemoryLender) {
  const plan = planArena(program)
  const arena = lender.lend(plan.bytes, 'arena')
  f32View(arena).fill(Number.NaN)
  return Object.fromEntries(
    program.buffers.map(buffer => {
      const offset = plan.offsets[buffer.name]
      const bytes = bufferBytes(program, buffer)
      return [buffer.name, offset === undefined ? lender.lend(bytes, buffer.name) : subspan(arena, offset, bytes)]
    }),
  )
}

function fill(
  span: Parameters<typeof f32View>[0],
  stride: number,
  column: number,
  chain: Chain,
  layout: Layout,
  me: RankCoordinates,
  value: (dp: number, row: number, column: number) => number,
): void {
  const to = f32View(span).fill(Number.NaN)
  rowsHeld(chain, layout, me).forEach(({ dp, row, pad }, r) => {
    for (let c = 0; c < chain.width; c++) to[r * stride + column + c] = pad ? Number.NaN : value(dp, row, c)
  })
}
