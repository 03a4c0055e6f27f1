// Finds stop texts in a stream of text. Invariant: no character of a stop text that ends the stream is ever returned, and what
// is returned does not depend on how the text was cut into pieces. The stop that is complete first wins; of several complete at
// the same character, the one that begins first.

export interface StopMatch {
  /** Text that can be shown. */
  readonly text: string
  /** The stop text that was met, else null; after it nothing more may be pushed. */
  readonly stop: string | null
  readonly stopped: boolean
}

export class StopMatcher {
  readonly #stops: readonly string[]
  readonly #longest: number
  #held = ''

  /** Empty stop texts are left out: they would end every stream before it begins. */
  constructor(stops: readonly string[]) {
    this.#stops = stops.filter(stop => stop !== '')
    this.#longest = Math.max(0, ...this.#stops.map(stop => stop.length))
  }

  push(text: string): StopMatch {
    if (this.#longest === 0) return { text, stop: null, stopped: false }
    const all = this.#held + text
    let end = Number.POSITIVE_INFINITY
    let begin = 0
    let met: string | null = null
    for (const stop of this.#stops) {
      const at = all.indexOf(stop)
      if (at < 0) continue
      const stopEnd = at + stop.length
      if (stopEnd < end || (stopEnd === end && at < begin)) {
        end = stopEnd
        begin = at
        met = stop
      }
    }
    if (met !== null) {
      this.#held = ''
      return { text: all.slice(0, begin), stop: met, stopped: true }
    }
    const keep = this.#couldBegin(all)
    this.#held = all.slice(all.length - keep)
    return { text: all.slice(0, all.length - keep), stop: null, stopped: false }
  }

  /** What was held back in case a stop text had begun; call once, at the end. */
  flush(): string {
    const text = this.#held
    this.#held = ''
    return text
  }

  /** Length of the longest end of `text` with which some stop text begins. */
  #couldBegin(text: string): number {
    for (let length = Math.min(this.#longest - 1, text.length); length > 0; length--) {
      const end = text.slice(text.length - length)
      if (this.#stops.some(stop => stop.length > length && stop.startsWith(end))) return length
    }
    return 0
  }
}
