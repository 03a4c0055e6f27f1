// What a dispatch and its combine move between ranks, told to a trace: bytes of rows in their wire formats, with ids, weights
// and the source token beside those of a dispatch. Counts of the rank's own rows are left out: they cross nothing.
import { type DispatchLayout, type ExpertBuffer, type WireDtype, wireFormat } from '../../comm/index.js'
import type { TrafficObserver } from '../../trace/index.js'

/** Formats of rows on their way to the experts and back. */
export interface Wires {
  readonly dispatchWire: WireDtype
  readonly combineWire: WireDtype
}

export class DispatchTraffic {
  readonly #observer: TrafficObserver
  readonly #member: number
  readonly #dispatchRow: number
  readonly #combineRow: number
  /** Rows of this rank that went to others, and of others that came here, in the dispatch at hand. */
  #out = 0
  #in = 0

  constructor({ config, member }: ExpertBuffer, wires: Wires, observer: TrafficObserver) {
    const rowBytes = (dtype: WireDtype) => wireFormat(dtype, config.hidden, config.roundScales ?? false).rowBytes
    this.#observer = observer
    this.#member = member
    this.#dispatchRow = rowBytes(wires.dispatchWire) + 4 * (2 * config.topK + 1)
    this.#combineRow = rowBytes(wires.combineWire)
  }

  get active(): boolean {
    return this.#observer.active
  }

  dispatched({ tokensPerMember }: DispatchLayout): void {
    this.#out = 0
    for (let m = 0; m < tokensPerMember.length; m++) if (m !== this.#member) this.#out += tokensPerMember[m]!
    this.#observer.sent(this.#out * this.#dispatchRow)
  }

  /** @param own rows of this rank among the `rows` that lie here now */
  arrived(rows: number, own: number): void {
    this.#in = rows - own
    this.#observer.received(rows, this.#in * this.#dispatchRow)
  }

  resultsSent(): void {
    this.#observer.sent(this.#in * this.#combineRow)
  }

  resultsArrived(): void {
    this.#observer.received(null, this.#out * this.#combineRow)
  }
}
