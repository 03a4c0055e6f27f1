// Binding: turns a program's operations into kernels of a device, with every operand's place in memory resolved.
// Done once per rank and program; a step then only passes row counts.
import type { CollectiveTag, Communicator, RowRange } from '../comm/index.js'
import { Unreachable } from '../config/errors.js'
import type { Kernel } from '../device/ops.js'
import { bindDispatchOperation } from './bind-dispatch.js'
import { bindFakeRouting, bindIdOperation } from './bind-ids.js'
import { bindPlainRows } from './bind-plain.js'
import { bindReduceNorm } from './bind-reduce-norm.js'
import { bindRowMove } from './bind-rows.js'
import { type Binding, type HostBound, Resolver, specsOf } from './binding.js'
import { exchangeOf } from './exchange-rules.js'
import type { CountsSymbol, Operation, RowSymbol } from './operation.js'
import type { RowValues } from './program.js'

/** An operation ready to run: a kernel that takes a row count, a move that looks at the plan, or a collective that waits. */
export type BoundOperation = {
  readonly kind: Operation['kind']
  readonly rows: RowSymbol
  readonly layer: number
  readonly index: number
} & ({ readonly how: 'kernel'; readonly kernel: Kernel } | HostBound)

type Bound = Kernel | HostBound

export function bindProgram(binding: Binding): readonly BoundOperation[] {
  const specs = specsOf(binding.program)
  const resolver = new Resolver(binding, specs)
  const sides = ([0, 1] as const).map(parity => new Resolver(binding, specs, parity))
  return binding.program.operations.map((op, index): BoundOperation => {
    const tag = { operation: index, layer: op.layer, label: op.label }
    const exchange = exchangeOf(op, specs)
    const bound = exchange
      ? alternating(
          sides.map(side => bindOperation(op, side, tag)),
          binding.groups[exchange.group!],
        )
      : bindOperation(op, resolver, tag)
    const place = { kind: op.kind, rows: op.rows, layer: op.layer, index }
    return typeof bound === 'function' ? { ...place, how: 'kernel', kernel: bound } : { ...place, ...bound }
  })
}

/** An operation in an exchange buffer: bound at both places where the buffer lies by turns. @param sides by parity */
function alternating(sides: readonly Bound[], group: Communicator): Bound {
  const [even, odd] = sides as readonly [Bound, Bound]
  if (typeof even === 'function' && typeof odd === 'function') {
    return rows => (group.nextParity === 0 ? even : odd)(rows)
  }
  if (typeof even === 'function' || typeof odd === 'function' || even.how !== odd.how) {
    throw new Unreachable('an operation is bound differently at its two places')
  }
  if (even.how === 'local') {
    return { how: 'local', run: values => (group.nextParity === 0 ? even : (odd as typeof even)).run(values) }
  }
  return { how: 'collective', run: values => (group.nextParity === 0 ? even : (odd as typeof even)).run(values) }
}

/** Present keys only: exactOptionalPropertyTypes forbids explicit undefined. */
const optional = <K extends string, V>(key: K, value: V | undefined): { [P in K]?: V } =>
  (value === undefined ? {} : { [key]: value }) as { [P in K]?: V }

const optionalVector = <K extends string>(r: Resolver, key: K, name: string | undefined) =>
  optional(key, name === undefined ? undefined : r.vector(name))

function bindOperation(op: Operation, r: Resolver, tag: CollectiveTag): Bound {
  const ops = r.ops
  switch (op.kind) {
    case 'embed':
      return ops.embed({ out: r.at(op.args.out), ids: r.at(op.args.ids), table: r.matrix(op.args.table) })
    case 'rms_norm': {
      const { width, groups, eps } = op.args
      return ops.rmsNorm({
        out: r.at(op.args.out),
        x: r.at(op.args.x),
        weight: r.vector(op.args.weight),
        width,
        groups,
        eps,
      })
    }
    case 'add_rms_norm': {
      const [out, residual, x] = [r.at(op.args.out), r.at(op.args.residual), r.at(op.args.x)]
      return ops.addRmsNorm({
        out,
        residual,
        x,
        weight: r.vector(op.args.weight),
        width: op.args.x.width,
        eps: op.args.eps,
      })
    }
    case 'add':
      return ops.add({ out: r.at(op.args.out), a: r.at(op.args.a), b: r.at(op.args.b), width: op.args.out.width })
    case 'copy':
      return ops.copy({ out: r.at(op.args.out), x: r.at(op.args.x), width: op.args.x.width })
    case 'gather_rows':
      return ops.gatherRows({
        out: r.at(op.args.out),
        x: r.at(op.args.x),
        index: r.at(op.args.index),
        width: op.args.x.width,
      })
    case 'linear':
      return ops.linear({
        out: r.at(op.args.out),
        x: r.at(op.args.x),
        weight: r.matrix(op.args.weight),
        ...optionalVector(r, 'bias', op.args.bias),
        ...optional('accumulate', op.args.accumulate),
      })
    case 'head_linear': {
      const { outHeadStride, xHeadStride } = op.args
      return ops.headLinear({
        out: r.at(op.args.out),
        outHeadStride,
        x: r.at(op.args.x),
        xHeadStride,
        weight: r.matrix(op.args.weight),
      })
    }
    case 'rope': {
      const { out, x, positions, table, ...rest } = op.args
      return ops.rope({ ...rest, out: r.at(out), x: r.at(x), positions: r.at(positions), cosSin: r.table(table) })
    }
    case 'store_kv':
      return ops.storeKv({
        kv: r.at(op.args.kv),
        x: r.at(op.args.x),
        slots: r.at(op.args.slots),
        width: op.args.x.width,
      })
    case 'attention':
      return bindAttention(op.args, r)
    case 'router': {
      const { ids, weights, logits, bias, spec } = op.args
      const kernel = ops.router({
        ids: r.at(ids),
        weights: r.at(weights),
        logits: r.at(logits),
        spec,
        ...optionalVector(r, 'bias', bias),
      })
      if (!r.fakeRouting) return kernel
      const positions = r.at({ buffer: 'positions', column: 0, width: 1 })
      return bindFakeRouting(kernel, r.at(ids), r.at(weights), positions, r.nextRouter(), spec)
    }
    case 'gated_activation':
      return ops.gatedActivation({ ...op.args, out: r.at(op.args.out), x: r.at(op.args.x) })
    case 'sigmoid_scale': {
      const { out, x, gate, accumulate } = op.args
      return ops.sigmoidScale({
        out: r.at(out),
        x: r.at(x),
        gate: r.at(gate),
        width: x.width,
        ...optional('accumulate', accumulate),
      })
    }
    case 'experts': {
      const { topK, activation, gateUpBias, downBias } = op.args
      return ops.experts({
        out: r.at(op.args.out),
        x: r.at(op.args.x),
        ids: r.at(op.args.ids),
        weights: r.at(op.args.weights),
        scratch: r.at(op.args.scratch),
        gateUp: r.matrix(op.args.gateUp),
        down: r.matrix(op.args.down),
        topK,
        activation,
        ...optionalVector(r, 'gateUpBias', gateUpBias),
        ...optionalVector(r, 'downBias', downBias),
      })
    }
    case 'sample': {
      const { out, logits, params, logprob } = op.args
      return ops.sample({
        out: r.at(out),
        logits: r.at(logits),
        params: r.at(params),
        vocab: logits.width,
        logprob: r.at(logprob),
      })
    }
    case 'all_gather': {
      const { group, counts } = op.args
      const [comm, out, width] = [r.group(group), r.at(op.args.out), op.args.x.width]
      if (r.isExchange(op.args.x)) {
        return { how: 'collective', run: v => comm.allGatherWritten(tag, out, width, v.counts[counts]) }
      }
      const x = r.at(op.args.x)
      return { how: 'collective', run: v => comm.allGather(tag, x, out, width, v.counts[counts]) }
    }
    case 'all_reduce': {
      const [comm, x, width, rows] = [r.group(op.args.group), r.at(op.args.x), op.args.x.width, op.rows]
      return { how: 'collective', run: v => comm.allReduce(tag, x, width, v.rows[rows]) }
    }
    case 'reduce_scatter': {
      const { group, counts } = op.args
      const [comm, x, out, width] = [r.group(group), r.at(op.args.x), r.at(op.args.out), op.args.x.width]
      return { how: 'collective', run: v => comm.reduceScatter(tag, x, out, width, v.counts[counts]) }
    }
    case 'reduce_norm': {
      const { out, residual, x, counts, weight, eps } = op.args
      const comm = r.group(op.args.group)
      const at = { out: r.at(out), residual: r.at(residual), x: r.at(x), weight: r.vector(weight), width: x.width, eps }
      return bindReduceNorm(r.ops, comm, tag, at, v => rowRange(v, counts, 'padded'), op.rows)
    }
    case 'gather_columns': {
      const { group, widths, counts } = op.args
      const [comm, x, out, own] = [r.group(group), r.at(op.args.x), r.at(op.args.out), op.rows]
      return { how: 'collective', run: v => comm.gatherColumns(tag, x, out, widths, rowRange(v, counts, own)) }
    }
    case 'place_rows':
    case 'cut_rows':
      return { how: 'local', run: bindRowMove(op, ref => r.at(ref)) }
    case 'clamp':
    case 'square_sum':
    case 'rms_scale':
      return bindPlainRows(
        op,
        ref => r.at(ref),
        name => r.vector(name),
      )
    case 'dispatch_send':
    case 'dispatch_receive':
    case 'dispatched_experts':
    case 'combine_send':
    case 'combine_receive':
      return bindDispatchOperation(op, tag, r)
    case 'clear_padding':
    case 'map_ids':
    case 'choose_replicas':
      return { how: 'local', run: bindIdOperation(op, ref => r.at(ref), r.idTables) }
  }
}

/** All rows that `counts` names and the own ones among them. */
function rowRange(values: RowValues, counts: CountsSymbol | null, own: RowSymbol): RowRange {
  if (counts === null) return { all: values.rows[own], from: 0, count: values.rows[own] }
  const list = values.counts[counts]
  const member = values.member[counts]
  const before = list.slice(0, member).reduce((a, b) => a + b, 0)
  return { all: list.reduce((a, b) => a + b, 0), from: before, count: list[member]! }
}

function bindAttention(args: Extract<Operation, { kind: 'attention' }>['args'], r: Resolver): Kernel {
  const { out, q, kv, batch, sinks, window, ...sizes } = args
  return r.ops.attention({
    ...sizes,
    out: r.at(out),
    q: r.at(q),
    kv: r.at(kv),
    batch: {
      rowSequence: r.at(batch.rowSequence),
      positions: r.at(batch.positions),
      pageTable: r.at(batch.pageTable),
      pageSize: batch.pageSize,
    },
    ...optional('window', window),
    ...optionalVector(r, 'sinks', sinks),
  })
}
