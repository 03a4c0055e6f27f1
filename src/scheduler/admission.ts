// How much of its max_tokens a request will probably draw: what admission counts with. Starts careful, trusts more the
// longer nothing had to be retracted, and takes a lesson from each retraction
// (source: SGLang managers/scheduler: new_token_ratio and --schedule-conservativeness).
import type { RequestState } from './request-state.js'

const START = 0.7
/** Least share, as a part of the start. */
const FLOOR = 0.14
const DECAY_STEPS = 600
/** Tokens each running request is granted after a retraction, so that the next one is not due at once. */
const GRANT = 20

export class AdmissionEstimate {
  readonly #start: number
  readonly #least: number
  #share: number

  /** @param conservativeness 1 is usual; larger counts with more tokens, at most all */
  constructor(conservativeness: number) {
    this.#start = Math.min(1, START * conservativeness)
    this.#least = Math.min(1, this.#start * FLOOR)
    this.#share = this.#start
  }

  /** Tokens to count with for a request that may draw `remaining` more; at least one. */
  tokens(remaining: number): number {
    return Math.max(Math.min(remaining, 1), Math.ceil(remaining * this.#share))
  }

  /** A step went by without trouble. */
  decay(): void {
    this.#share = Math.max(this.#least, this.#share - (this.#start - this.#least) / DECAY_STEPS)
  }

  /** Pages ran out: count from now on with what the running requests have drawn so far and a little more. */
  retracted(running: readonly RequestState[]): void {
    const drawn = running.reduce((sum, s) => sum + s.drawn + GRANT, 0)
    const allowed = running.reduce((sum, s) => sum + s.request.maxTokens, 0)
    this.#share = Math.min(1, Math.max(this.#share, allowed === 0 ? 0 : drawn / allowed))
  }
}
