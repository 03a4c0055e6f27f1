// Results of an expert buffer: which of the alternating pieces of memory are taken, and how far each dispatch has come.
// Choosing a piece is the same on all members, because all begin and end results in the same order.
import { ExpertBufferError } from '../../errors.js'
import type { DispatchHandle, NormalHandle } from '../../expert-buffer.js'
import type { DispatchLayout } from '../../layout.js'
import type { TokenRoutes } from './routing.js'

export type ResultState =
  | 'waiting to be sent'
  | 'waiting to be received'
  | 'received'
  | 'waiting for its combine'
  | 'combined or released'

export abstract class EpHandle implements DispatchHandle {
  abstract readonly mode: 'normal' | 'lowLatency'
  readonly parity: number
  readonly routes: TokenRoutes
  /** [tokens, members]: the token's row on each member. */
  table: Int32Array = new Int32Array(0)
  state: ResultState = 'waiting to be sent'

  constructor(parity: number, routes: TokenRoutes) {
    this.parity = parity
    this.routes = routes
  }

  get tokens(): number {
    return this.routes.tokens
  }
  get layout(): DispatchLayout {
    return this.routes.layout
  }
  get alive(): boolean {
    return this.state !== 'combined or released'
  }
}

/** What the exchange of counts told; shared by a handle and those made from it. */
export interface NormalCounts {
  /** Sequence of the notify that counted: names the dispatch that is reused. */
  readonly origin: number
  readonly received: number
  readonly bound: number
  readonly sourceStart: Int32Array
  readonly tokensPerExpert: Int32Array
  /** Tokens of each member. */
  readonly tokensOfMember: Int32Array
  /** [members, channels]: rows that each lane brings here. */
  readonly incoming: Int32Array
}

export class NormalEpHandle extends EpHandle implements NormalHandle {
  readonly mode = 'normal'
  counts: NormalCounts = NO_COUNTS

  get received(): number {
    return this.counts.received
  }
  get bound(): number {
    return this.counts.bound
  }
  get sourceStart(): Int32Array {
    return this.counts.sourceStart
  }
  get tokensPerExpert(): Int32Array {
    return this.counts.tokensPerExpert
  }
}

const NONE = new Int32Array(0)
const NO_COUNTS: NormalCounts = {
  origin: 0,
  received: 0,
  bound: 0,
  sourceStart: NONE,
  tokensPerExpert: NONE,
  tokensOfMember: NONE,
  incoming: NONE,
}

export class LowLatencyEpHandle extends EpHandle {
  readonly mode = 'lowLatency'
  /** Tokens from each source; known once received. */
  tokensPerSource: Int32Array = NONE
  /** [members·slots, topK]: row of (expert, position) for each slot's slots; -1 = none. */
  rowOfSlot: Int32Array = NONE
}

export class ResultSlots<H extends EpHandle> {
  readonly #slots: (H | null)[]
  readonly #rank: number
  #last = -1

  constructor(results: number, rank: number) {
    this.#slots = Array<H | null>(results).fill(null)
    this.#rank = rank
  }

  /** The parity that the next result takes. @throws ExpertBufferError SY_EP_TOO_MANY_RESULTS */
  next(label: string): number {
    const limit = this.#slots.length
    for (let i = 1; i <= limit; i++) {
      const parity = (this.#last + i) % limit
      if (!this.#slots[parity]?.alive) return parity
    }
    throw new ExpertBufferError('SY_EP_TOO_MANY_RESULTS', { rank: this.#rank, label, count: limit + 1, limit })
  }

  take(handle: H): void {
    this.#slots[handle.parity] = handle
    this.#last = handle.parity
  }

  /** Checks that `handle` is this buffer's and as far as `wanted`. @throws ExpertBufferError SY_EP_WRONG_ORDER */
  claim(handle: DispatchHandle, wanted: ResultState, operation: string, label: string): H {
    const mine = this.#slots[handle.parity]
    if (mine && mine === (handle as unknown) && mine.state === wanted) return mine
    const state =
      mine === (handle as unknown) ? mine!.state : handle.alive ? "another buffer's" : 'combined or released'
    throw new ExpertBufferError('SY_EP_WRONG_ORDER', { rank: this.#rank, label, operation, state })
  }

  dropAll(): void {
    for (const handle of this.#slots) if (handle) handle.state = 'combined or released'
    this.#slots.fill(null)
    this.#last = -1
  }
}
