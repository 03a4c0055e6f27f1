// The line that says how a run goes: redrawn in place on a terminal, every five seconds elsewhere.
import type { CliIo } from '../../io.js'

const REDRAW_MS = 200
const PLAIN_MS = 5000

export class LiveLine implements Disposable {
  readonly #io: CliIo
  readonly #total: number
  readonly #timer: NodeJS.Timeout
  readonly #begun = performance.now()
  #tokens = 0
  #lastTokens = 0
  #lastAt = this.#begun
  #begunRequests = 0
  #done = 0
  #failed = 0

  constructor(io: CliIo, total: number) {
    this.#io = io
    this.#total = total
    this.#timer = setInterval(() => this.#draw(), io.errIsTerminal ? REDRAW_MS : PLAIN_MS)
  }

  tokens(count: number): void {
    this.#tokens += count
  }

  begin(): void {
    this.#begunRequests++
  }

  end(failed: boolean): void {
    this.#done++
    if (failed) this.#failed++
  }

  #draw(): void {
    const now = performance.now()
    const rate = (1000 * (this.#tokens - this.#lastTokens)) / (now - this.#lastAt)
    this.#lastTokens = this.#tokens
    this.#lastAt = now
    const parts = [
      `${((now - this.#begun) / 1000).toFixed(0)} s`,
      `${this.#done}/${this.#total} done`,
      `${this.#begunRequests - this.#done} running`,
      `${Math.round(rate).toLocaleString('en-US')} tok/s`,
      ...(this.#failed > 0 ? [`${this.#failed} failed`] : []),
    ]
    this.#io.err(this.#io.errIsTerminal ? `\r\x1b[2K${parts.join('  ')}` : `${parts.join('  ')}\n`)
  }

  [Symbol.dispose](): void {
    clearInterval(this.#timer)
    if (this.#io.errIsTerminal) this.#io.err('\r\x1b[2K')
  }
}
