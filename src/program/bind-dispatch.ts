// Binding of dispatch, experts and combine. Where received rows lie alternates with the buffer's parity, so the expert
// kernel is bound once for each place it is met at and kept.
import type { CollectiveTag } from '../comm/index.js'
import { i32View } from '../device/memory.js'
import type { Kernel, Operand, Ops, PackedMatrix, ParameterVector } from '../device/ops.js'
import type { IdTables } from './bind-ids.js'
import type { HostBound } from './binding.js'
import type { DispatchMode, ExpertDispatcher, ReceivedTokens } from './expert-dispatch.js'
import type { Operation, Ref } from './operation.js'

export type DispatchOperation = Extract<
  Operation,
  { kind: 'dispatch_send' | 'dispatch_receive' | 'dispatched_experts' | 'combine_send' | 'combine_receive' }
>

export interface DispatchBinding {
  readonly ops: Ops
  at(ref: Ref): Operand
  matrix(name: string): PackedMatrix
  vector(name: string): ParameterVector
  readonly idTables: IdTables
  dispatcher(mode: DispatchMode): ExpertDispatcher
  /** What the last receive of each mode gave; shared by the operations of one rank's program. */
  readonly received: Map<DispatchMode, ReceivedTokens>
}

export function bindDispatchOperation(op: DispatchOperation, tag: CollectiveTag, b: DispatchBinding): HostBound {
  const { mode } = op.args
  switch (op.kind) {
    case 'dispatch_send': {
      const [x, ids, weights, rows] = [b.at(op.args.x), b.at(op.args.ids), b.at(op.args.weights), op.rows]
      // Whatever the layout, a rank brings its share of its attention-DP rank's rows: that is the cut over all ranks.
      return {
        how: 'collective',
        run: v => b.dispatcher(mode).send(tag, { own: v.rows[rows], ofRank: v.counts.tp }, x, ids, weights),
      }
    }
    case 'dispatch_receive':
      return {
        how: 'collective',
        *run() {
          b.received.set(mode, yield* b.dispatcher(mode).receive())
        },
      }
    case 'dispatched_experts':
      return { how: 'local', run: bindExperts(op.args, b) }
    case 'combine_send': {
      const [partials, out] = [b.at(op.args.partials), b.at(op.args.out)]
      return {
        how: 'collective',
        run: () => b.dispatcher(mode).sendResults(tag, b.received.get(mode)?.partials ?? partials, out),
      }
    }
    case 'combine_receive':
      return { how: 'collective', run: () => b.dispatcher(mode).receiveResults() }
  }
}

function bindExperts(args: Extract<Operation, { kind: 'dispatched_experts' }>['args'], b: DispatchBinding): () => void {
  const { mode, topK, activation } = args
  const [held, partials, scratch] = [b.at(args.held), b.at(args.partials), b.at(args.scratch)]
  const table = i32View(b.idTables.spans[args.table]!)
  const fixed = {
    ids: held,
    topK,
    activation,
    scratch,
    gateUp: b.matrix(args.gateUp),
    down: b.matrix(args.down),
    ...(args.gateUpBias ? { gateUpBias: b.vector(args.gateUpBias) } : {}),
    ...(args.downBias ? { downBias: b.vector(args.downBias) } : {}),
  }
  const kernels = new Map<string, Kernel>()
  const place = ({ span, offset }: Operand) => `${span.byteOffset + 4 * offset}`
  return () => {
    const received = b.received.get(mode)!
    mapRows(held, received.ids, table, topK, received.rows)
    const key = `${place(received.x)} ${place(received.weights)}`
    let kernel = kernels.get(key)
    if (!kernel) {
      const { x, weights } = received
      kernel = b.ops.experts({ ...fixed, x, weights, out: received.partials ?? partials })
      kernels.set(key, kernel)
    }
    kernel(received.rows)
  }
}

/** Experts of this rank → rows of the node's stack. */
function mapRows(out: Operand, ids: Operand, table: Int32Array, topK: number, rows: number): void {
  const [to, from] = [i32View(out.span), i32View(ids.span)]
  for (let r = 0; r < rows; r++) {
    const [source, target] = [ids.offset + r * ids.stride, out.offset + r * out.stride]
    for (let c = 0; c < topK; c++) {
      const id = from[source + c]!
      to[target + c] = id < 0 ? -1 : table[id]!
    }
  }
}
