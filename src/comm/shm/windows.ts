// What members publish, as operands that kernels are bound to: the halves of a group's exchange, seen as rows of a width.
import { i32View } from '../../device/memory.js'
import type { Parity, Window } from '../communicator.js'
import { type ExchangeHalf, HEADER_FIELDS } from './exchange.js'

/** Header word that holds a window's `first`: the one behind what is published. */
const FIRST = HEADER_FIELDS.length

export class Windows {
  readonly #halves: readonly (readonly [ExchangeHalf, ExchangeHalf])[]
  readonly #firsts: readonly [Int32Array, Int32Array]
  readonly #member: number
  readonly #byWidth = new Map<number, readonly [Window, Window]>()

  /** @param halves by member */
  constructor(halves: readonly (readonly [ExchangeHalf, ExchangeHalf])[], member: number) {
    this.#halves = halves
    this.#member = member
    const [even, odd] = halves[member]!
    this.#firsts = [i32View(even.headerSpan), i32View(odd.headerSpan)]
  }

  of(width: number): readonly [Window, Window] {
    let found = this.#byWidth.get(width)
    if (!found) {
      const window = (parity: Parity): Window => ({
        members: this.#halves.map(half => ({ span: half[parity].payload, offset: 0, stride: width })),
        first: { span: this.#halves[this.#member]![parity].headerSpan, offset: FIRST, stride: 1 },
      })
      found = [window(0), window(1)]
      this.#byWidth.set(width, found)
    }
    return found
  }

  setFirst(parity: Parity, row: number): void {
    this.#firsts[parity][FIRST] = row
  }
}
