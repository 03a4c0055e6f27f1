// Turns a request's drawn tokens into text: incremental decoding, then stop texts with hold-back.
// It decides nothing about token ends; the rank does that.
import { IncrementalDetokenizer, StopMatcher, type Tokenizer } from '../formats/tokenizer/index.js'

export class TextStream {
  readonly #detokenizer: IncrementalDetokenizer | null
  readonly #stops: StopMatcher

  constructor(tokenizer: Tokenizer | null, stop: readonly string[]) {
    this.#detokenizer = tokenizer ? new IncrementalDetokenizer(tokenizer) : null
    this.#stops = new StopMatcher(stop)
  }

  /** Text that is certain after one more token, and whether a stop text has come. */
  push(token: number): { text: string; stopped: boolean } {
    if (!this.#detokenizer) return { text: '', stopped: false }
    return this.#stops.push(this.#detokenizer.push(token))
  }

  /** What was held back, when no more tokens come. */
  flush(): { text: string; stopped: boolean } {
    if (!this.#detokenizer) return { text: '', stopped: false }
    const last = this.#stops.push(this.#detokenizer.flush())
    return last.stopped ? { text: last.text, stopped: true } : { text: last.text + this.#stops.flush(), stopped: false }
  }
}
