// Gathers the rows of logits of one prompt as its chunks come in.
import type { RequestProgress } from '../scheduler/index.js'

export class LogitsCollector {
  /** [prompt tokens, vocab], complete when it settles. */
  readonly rows: Promise<Float32Array>
  readonly #rows: Float32Array
  readonly #vocab: number
  #at = 0
  #resolve!: (rows: Float32Array) => void
  #reject!: (error: Error) => void

  constructor(tokens: number, vocab: number) {
    this.#rows = new Float32Array(tokens * vocab)
    this.#vocab = vocab
    this.rows = new Promise((resolve, reject) => {
      this.#resolve = resolve
      this.#reject = reject
    })
  }

  /** @param logits rows of a step @returns whether the prompt is complete */
  add({ logitRow, logitRows, end }: RequestProgress, logits: Float32Array): boolean {
    const from = logitRow * this.#vocab
    const rows = logits.subarray(from, from + logitRows * this.#vocab)
    this.#rows.set(rows, this.#at)
    this.#at += rows.length
    if (end !== null) this.#resolve(this.#rows)
    return end !== null
  }

  reject(error: Error): void {
    this.#reject(error)
  }
}
