// The boundary between stages: it keeps the residual stream and gives each stage its input.
//
// A stage says which layout it reads and which layout (and owed sum) it hands over. The boundary picks, once, while the
// program is built, the moves, the reduction, the addition to the residual and the norm. Models never ask how many
// ranks there are. The residual stays with its attention-DP rank; what travels is complete and normalised, so that the
// order of additions does not depend on the padding mode. Over one rank what remains is residual + norm in one operation.
//
// Where one reduction brings the rows home, reduction, residual and norm are one operation; where one all-gather follows,
// the norm writes where the other ranks read. The chain of separate operations stays for all else, and as the reference.
import { columns, type Ref } from '../../program/index.js'
import { type Layout, normalize, sameLayout } from './layout.js'
import { departure, type MoveContext, moveRows, type Placed, plainReduction, rowsIn } from './moves.js'

/** Layout of the residual stream. */
const HOME: Layout = ['ATTN_DP']

export class Boundary {
  readonly #moves: MoveContext
  readonly #eps: number
  readonly #residual: Ref
  #pending: Placed | null = null

  /** @param residual [tokens, hidden]: the embeddings start the stream */
  constructor(moves: MoveContext, residual: Ref, eps: number) {
    this.#moves = moves
    this.#residual = residual
    this.#eps = eps
  }

  /**
   * The normalised input of a stage that reads rows in layout `need`; folds the previous stage's output into the residual.
   * @param into columns the normalised rows are written to, when the stage wants them beside other columns
   */
  read(norm: string, need: Layout, name: string, into?: Ref): Ref {
    const { sizes } = this.#moves
    const out = into ?? departure(this.#moves, name, this.#residual.width, need)
    this.#normalize(out, norm, name)
    if (sameLayout(normalize(sizes, HOME), normalize(sizes, need))) return out
    return moveRows(this.#moves, { value: out, layout: HOME, owes: null }, need, name)
  }

  /** out = norm of the residual, after what the previous stage handed over has joined it. */
  #normalize(out: Ref, weight: string, name: string): void {
    const { builder, unfused } = this.#moves
    const residual = this.#residual
    const eps = this.#eps
    const pending = this.#pending
    this.#pending = null
    if (pending === null) {
      const args = { out, x: residual, weight, width: residual.width, groups: 1, eps }
      builder.emit('rms_norm', args, { label: `norm into ${name}` })
      return
    }
    const reduction = unfused ? null : plainReduction(this.#moves, pending)
    if (reduction) {
      const members = reduction.group === 'tp' ? 'all ranks' : 'attention-TP'
      const args = { out, residual, x: columns(pending.value, 0, residual.width), ...reduction, weight, eps }
      builder.emit('reduce_norm', args, { label: `sum over ${members} + residual + norm into ${name}` })
      return
    }
    const settled = moveRows(this.#moves, pending, HOME, `${name}.update`)
    const args = { out, residual, x: columns(settled, 0, residual.width), weight, eps }
    builder.emit('add_rms_norm', args, { label: `residual + norm into ${name}` })
  }

  /** Takes a stage's output; it joins the residual when the next stage reads. */
  write(output: Placed): void {
    this.#pending = output
  }

  /** Rows of a buffer in `layout`. */
  rowsIn(layout: Layout) {
    return rowsIn(this.#moves.sizes, layout)
  }
}
