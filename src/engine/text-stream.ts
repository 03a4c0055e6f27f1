// Turns a request's drawn tokens into text: incremental decoding, then stop texts with hold-back.
// It decides nothing about token ends; the rank does that.
import { IncrementalDetokenizer, StopMatcher, type Tokenizer } from '../formats/tokenizer/index.js'

export class TextStream {
  readonly #detokenizer: IncrementalDetokenizer | null
  readonly #stops: StopMatcher
  #unwatched: number
  #matched: string | undefined

  /** @param minTokens tokens at the beginning whose text is not searched for stop texts */
  constructor(tokenizer: Tokenizer | null, stop: readonly string[], minTokens = 0) {
    this.#detokenizer = tokenizer ? new IncrementalDetokenizer(tokenizer) : null
    this.#stops = new StopMatcher(stop)
    this.#unwatched = minTokens
  }

  /** The stop text that was met. */
  get matched(): string | undefined {
    return this.#matched
  }

  /** Text that is certain after one more token, and whether a stop text has come. */
  push(token: number): { text: string; stopped: boolean } {
    if (!this.#detokenizer) return { text: '', stopped: false }
    const text = this.#detokenizer.push(token)
    if (this.#unwatched > 0) {
      this.#unwatched--
      return { text, stopped: false }
    }
    return this.#search(text)
  }

  /** What was held back, when no more tokens come. */
  flush(): { text: string; stopped: boolean } {
    if (!this.#detokenizer) return { text: '', stopped: false }
    const last = this.#search(this.#detokenizer.flush())
    return last.stopped ? last : { text: last.text + this.#stops.flush(), stopped: false }
  }

  #search(text: string): { text: string; stopped: boolean } {
    const found = this.#stops.push(text)
    if (found.stop !== null) this.#matched = found.stop
    return { text: found.text, stopped: found.stopped }
  }
}
