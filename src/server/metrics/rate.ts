// Events a second over the last ten whole seconds. One writer, any number of readers; a reader changes nothing.
const SECONDS = 10

export class Rate {
  readonly #counts = new Float64Array(SECONDS + 1)
  readonly #seconds = new Float64Array(SECONDS + 1).fill(-1)

  /** @param now seconds */
  add(count: number, now: number): void {
    const second = Math.floor(now)
    const slot = second % this.#counts.length
    if (this.#seconds[slot] !== second) {
      this.#seconds[slot] = second
      this.#counts[slot] = 0
    }
    this.#counts[slot]! += count
  }

  /** @param now seconds; the running second is left out */
  perSecond(now: number): number {
    const second = Math.floor(now)
    let sum = 0
    this.#seconds.forEach((at, slot) => {
      if (at < second && at >= second - SECONDS) sum += this.#counts[slot]!
    })
    return sum / SECONDS
  }
}
