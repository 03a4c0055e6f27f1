// One request's stream of events: the engine pushes, the caller iterates. Ends with an event, an error or the caller leaving.

export class EventQueue<T> implements AsyncIterableIterator<T> {
  readonly #items: T[] = []
  readonly #onLeave: () => void
  #error: Error | null = null
  #ended = false
  #wake: (() => void) | null = null

  /** @param onLeave runs when the caller stops iterating before the end */
  constructor(onLeave: () => void) {
    this.#onLeave = onLeave
  }

  push(item: T): void {
    this.#items.push(item)
    this.#rouse()
  }

  end(): void {
    this.#ended = true
    this.#rouse()
  }

  fail(error: Error): void {
    this.#error = error
    this.#rouse()
  }

  #rouse(): void {
    this.#wake?.()
    this.#wake = null
  }

  async next(): Promise<IteratorResult<T>> {
    for (;;) {
      if (this.#items.length > 0) return { value: this.#items.shift()!, done: false }
      if (this.#error) throw this.#error
      if (this.#ended) return { value: undefined, done: true }
      await new Promise<void>(resolve => {
        this.#wake = resolve
      })
    }
  }

  async return(): Promise<IteratorResult<T>> {
    if (!this.#ended && !this.#error) this.#onLeave()
    this.#ended = true
    return { value: undefined, done: true }
  }

  [Symbol.asyncIterator](): this {
    return this
  }
}
