// The boundary between stages: it keeps the residual stream and gives each stage its input.
//
// A stage says which layout it reads and which layout (and owed sum) it hands over. The boundary picks, once, while the
// program is built, the moves, the reduction, the addition to the residual and the norm. Models never ask how many
// ranks there are. Over one rank every move is the identity: what remains is residual + norm in one operation.

import type { ParallelSizes } from '../../parallel/index.js'
import { columns, type ProgramBuilder, type Ref } from '../../program/index.js'
import { BoundaryError } from './errors.js'
import { type Layout, normalize, pendingSum, type SumGroup, sameLayout } from './layout.js'

/** A value with what is known about its rows. */
export interface StageOutput {
  readonly value: Ref
  readonly layout: Layout
  /** Group over which the value must still be summed. */
  readonly owes: SumGroup | null
}

export class Boundary {
  readonly #builder: ProgramBuilder
  readonly #sizes: ParallelSizes
  readonly #eps: number
  #residual: Ref | null = null
  #residualLayout: Layout = []
  #pending: StageOutput | null = null

  constructor(builder: ProgramBuilder, sizes: ParallelSizes, eps: number) {
    this.#builder = builder
    this.#sizes = sizes
    this.#eps = eps
  }

  /** The embedding starts the stream. */
  start(value: Ref, layout: Layout): void {
    this.#residual = value
    this.#residualLayout = normalize(this.#sizes, layout)
  }

  /** The normalised input of a stage that reads rows in layout `need`. Folds the previous stage's output into the residual. */
  read(norm: string, need: Layout, name: string): Ref {
    const residual = this.#residual!
    const to = normalize(this.#sizes, need)
    this.#expectIdentity(this.#residualLayout, null, to)
    const out = this.#builder.arena(name, residual.width)
    const pending = this.#pending
    if (pending === null) {
      const args = { out, x: residual, weight: norm, width: residual.width, groups: 1, eps: this.#eps }
      this.#builder.emit('rms_norm', args, { label: `norm into ${name}` })
      return out
    }
    this.#expectIdentity(normalize(this.#sizes, pending.layout), pendingSum(this.#sizes, pending.owes), to)
    const x = columns(pending.value, 0, residual.width)
    const args = { out, residual, x, weight: norm, eps: this.#eps }
    this.#builder.emit('add_rms_norm', args, { label: `residual + norm into ${name}` })
    this.#pending = null
    return out
  }

  /** Takes a stage's output; it joins the residual when the next stage reads. */
  write(output: StageOutput): void {
    this.#pending = output
  }

  #expectIdentity(from: Layout, owed: SumGroup | null, to: Layout): void {
    if (sameLayout(from, to) && owed === null) return
    const show = (layout: Layout) => (layout.length === 0 ? 'nothing' : layout.join('+'))
    throw new BoundaryError('SY_BOUNDARY_UNDEFINED', { from: show(from), to: show(to), owed: owed ?? 'nothing' })
  }
}
