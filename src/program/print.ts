// A program as a reader sees it: one line an operation, with shapes in symbols. `switchyard explain` prints it.
import { planArena } from './arena.js'
import { type Operation, type Ref, readsOf, writesOf } from './operation.js'
import { type BufferSpec, boundedRows, type Program } from './program.js'

export interface PrintedOperation {
  readonly index: number
  readonly layer: number
  readonly kind: string
  readonly rows: string
  readonly label: string
  readonly reads: readonly string[]
  readonly writes: readonly string[]
  readonly weights: readonly string[]
}

/** `name[a:b]`; `name@group[a:b]` when it lies where the members of a group read it. */
function show({ buffer, column, width }: Ref, exchanges: ReadonlyMap<string, BufferSpec>): string {
  const group = exchanges.get(buffer)?.group
  return `${buffer}${group ? `@${group}` : ''}[${column}:${column + width}]`
}

const WEIGHT_ARGUMENTS = ['table', 'weight', 'bias', 'gateUp', 'down', 'gateUpBias', 'downBias', 'sinks']

function weightsOf(op: Operation): string[] {
  const args = op.args as unknown as Record<string, unknown>
  return WEIGHT_ARGUMENTS.flatMap(key => (typeof args[key] === 'string' ? [args[key]] : []))
}

export function describeOperations(program: Program): PrintedOperation[] {
  const exchanges = new Map(program.buffers.filter(b => b.kind === 'exchange').map(b => [b.name, b]))
  const shown = (refs: readonly Ref[]) => refs.map(ref => show(ref, exchanges))
  return program.operations.map((op, index) => ({
    index,
    layer: op.layer,
    kind: op.kind,
    rows: op.rows,
    label: op.label,
    reads: shown(readsOf(op)),
    writes: shown(writesOf(op)),
    weights: weightsOf(op),
  }))
}

/** Lines of text; layers equal to the one before are folded into one line. */
export function printProgram(program: Program): string[] {
  const plan = planArena(program)
  const lines = [
    `program ${program.name}: ${program.operations.length} operations, arena ${mib(plan.bytes)} (${mib(plan.unsharedBytes)} unshared)`,
  ]
  for (const [symbol, bound] of Object.entries(program.bounds)) lines.push(`  rows ${symbol} <= ${bound}`)
  const layers = groupLayers(describeOperations(program))
  let previous = ''
  let folded: number[] = []
  const flush = () => {
    if (folded.length > 0)
      lines.push(`layer ${folded.length > 1 ? `${folded[0]}-${folded.at(-1)}` : folded[0]}: as the one before`)
    folded = []
  }
  for (const [layer, ops] of layers) {
    const body = ops.map(
      op =>
        `  ${op.kind.padEnd(17)} ${op.writes.map(unscoped).join(', ')} <- ${op.reads.map(unscoped).join(', ')}  # ${op.label}`,
    )
    const shape = body.join('\n')
    if (layer >= 0 && shape === previous) {
      folded.push(layer)
      continue
    }
    flush()
    lines.push(layer < 0 ? 'outside layers:' : `layer ${layer}:`, ...body)
    previous = shape
  }
  flush()
  for (const b of program.buffers.filter(b => b.kind !== 'arena' && b.kind !== 'kv' && b.kind !== 'exchange')) {
    lines.push(`  ${b.kind} buffer ${b.name}: ${b.dtype} [${boundedRows(program, b)}, ${b.columns}]`)
  }
  return lines
}

/** Runs of operations with the same layer, in order. */
function groupLayers(ops: readonly PrintedOperation[]): [number, PrintedOperation[]][] {
  const groups: [number, PrintedOperation[]][] = []
  for (const op of ops) {
    const last = groups.at(-1)
    if (last && last[0] === op.layer) last[1].push(op)
    else groups.push([op.layer, [op]])
  }
  return groups
}

/** Buffer names without their layer, so that equal layers look equal. */
const unscoped = (name: string): string => name.replace(/^(kv\.)?\d+(?=[.[])\.?/, '$1')

const mib = (bytes: number): string => `${(bytes / 1048576).toFixed(1)} MiB`
