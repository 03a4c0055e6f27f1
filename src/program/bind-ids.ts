// Operations on expert ids: padding, replica choice, and the map from physical experts to what this rank holds.
// Which replica serves a token depends on layer, expert, request and position only, never on the batch or the rank.
import { f32View, i32View, type MemorySpan } from '../device/memory.js'
import type { Kernel, Operand, RouterSpec } from '../device/ops.js'
import { drawExperts } from '../runtime/fake-routing.js'
import { replicaOf } from '../runtime/replica-hash.js'
import type { Operation, Ref } from './operation.js'
import type { RowValues } from './program.js'

/** i32 tables of the placement by name, lent by the node. Replica tables are [experts, 1 + width]: count, then physical ids. */
export interface IdTables {
  readonly spans: Readonly<Record<string, MemorySpan>>
  /** Columns of a row, by table. 1 for plain maps. */
  readonly columns: Readonly<Record<string, number>>
}

type IdOperation = Extract<Operation, { kind: 'clear_padding' | 'map_ids' | 'choose_replicas' }>

export function bindIdOperation(
  op: IdOperation,
  at: (ref: Ref) => Operand,
  tables: IdTables,
): (values: RowValues) => void {
  if (op.kind === 'clear_padding') {
    const [ids, width] = [at(op.args.ids), op.args.ids.width]
    const view = i32View(ids.span)
    return ({ rows }) => {
      for (let r = rows.tokens; r < rows.padded; r++) {
        const start = ids.offset + r * ids.stride
        view.fill(-1, start, start + width)
      }
    }
  }
  const [out, ids, width] = [at(op.args.out), at(op.args.ids), op.args.ids.width]
  const [to, from] = [i32View(out.span), i32View(ids.span)]
  const table = i32View(tables.spans[op.args.table]!)
  const symbol = op.rows
  if (op.kind === 'map_ids') {
    return ({ rows }) => {
      for (let r = 0; r < rows[symbol]; r++) {
        for (let c = 0; c < width; c++) {
          const id = from[ids.offset + r * ids.stride + c]!
          to[out.offset + r * out.stride + c] = id < 0 ? -1 : table[id]!
        }
      }
    }
  }
  const [keys, positions, layer] = [at(op.args.requestKeys), at(op.args.positions), op.args.layer]
  const [keyView, positionView] = [i32View(keys.span), i32View(positions.span)]
  const columns = tables.columns[op.args.table]!
  return ({ rows }) => {
    for (let r = 0; r < rows[symbol]; r++) {
      const key = keyView[keys.offset + r * keys.stride]!
      const position = positionView[positions.offset + r * positions.stride]!
      for (let c = 0; c < width; c++) {
        const expert = from[ids.offset + r * ids.stride + c]!
        const row = expert * columns
        const count = expert < 0 ? 0 : table[row]!
        const pick = replicaOf(layer, expert, key, position, count)
        to[out.offset + r * out.stride + c] = expert < 0 ? -1 : table[row + 1 + pick]!
      }
    }
  }
}

/** A router whose choice is replaced by experts drawn evenly, which weigh alike. `salt`: which router of the program it is. */
export function bindFakeRouting(
  router: Kernel,
  ids: Operand,
  weights: Operand,
  positions: Operand,
  salt: number,
  { experts, topK, scale }: RouterSpec,
): Kernel {
  const [to, at, shares] = [i32View(ids.span), i32View(positions.span), f32View(weights.span)]
  return rows => {
    router(rows)
    for (let r = 0; r < rows; r++) {
      const start = ids.offset + r * ids.stride
      const position = at[positions.offset + r * positions.stride]!
      drawExperts(salt, r, position, experts, to.subarray(start, start + topK))
      const from = weights.offset + r * weights.stride
      shares.fill(scale / topK, from, from + topK)
    }
  }
}
