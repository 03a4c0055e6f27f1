// The boundary between stages: it keeps the residual stream and gives each stage its input.
//
// A stage says which layout it reads and which layout (and owed sum) it hands over. The boundary picks, once, while the
// program is built, the moves, the reduction, the addition to the residual and the norm. Models never ask how many
// ranks there are. The residual stays with its attention-DP rank; what travels is complete and normalised, so that the
// order of additions does not depend on the padding mode. Over one rank what remains is residual + norm in one operation.
import { columns, type Ref } from '../../program/index.js'
import { type Layout, normalize, sameLayout } from './layout.js'
import { type MoveContext, moveRows, type Placed, rowsIn } from './moves.js'

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
    const { builder, sizes } = this.#moves
    const residual = this.#residual
    const out = into ?? builder.arena(name, residual.width)
    if (this.#pending === null) {
      const args = { out, x: residual, weight: norm, width: residual.width, groups: 1, eps: this.#eps }
      builder.emit('rms_norm', args, { label: `norm into ${name}` })
    } else {
      const settled = moveRows(this.#moves, this.#pending, HOME, `${name}.update`)
      const x = columns(settled, 0, residual.width)
      builder.emit(
        'add_rms_norm',
        { out, residual, x, weight: norm, eps: this.#eps },
        { label: `residual + norm into ${name}` },
      )
      this.#pending = null
    }
    if (sameLayout(normalize(sizes, HOME), normalize(sizes, need))) return out
    return moveRows(this.#moves, { value: out, layout: HOME, owes: null }, need, name)
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
