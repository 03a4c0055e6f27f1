// What the server can do at the moment, and what it is busy with: loading, ready, draining, failed. Every request that
// uses the engine holds a ticket, so that a drain knows when it is done and a failure reaches everyone who waits.
import type { GenerationEngine } from '../engine/request.js'
import { HttpError } from './errors.js'
import { Metrics, type RequestObserver } from './metrics/index.js'

export type Phase = 'loading' | 'ready' | 'draining' | 'failed'

/** One request's hold on the engine. `end` is idempotent. */
export interface Ticket {
  readonly engine: GenerationEngine
  /** Told of every engine request that is made under this ticket. */
  readonly observer: RequestObserver
  /** Events of one engine request that may wait for the client. */
  readonly maxBacklog: number
  /** Aborts with an HttpError when the server cannot finish the request, or through `abort`. */
  readonly signal: AbortSignal
  abort(reason: Error): void
  end(): void
}

export class Lifecycle {
  #phase: Phase = 'loading'
  #engine: GenerationEngine | null = null
  #failure: Error | null = null
  readonly #tickets = new Set<Ticket>()
  #idleWaiters: (() => void)[] = []
  readonly #maxBacklog: number
  readonly #maxQueued: number
  readonly metrics = new Metrics(() => this.#engine)

  constructor(options: { readonly maxStreamBacklog: number; readonly maxQueuedRequests: number | null }) {
    this.#maxBacklog = options.maxStreamBacklog
    this.#maxQueued = options.maxQueuedRequests ?? Number.POSITIVE_INFINITY
  }

  get phase(): Phase {
    return this.#phase
  }

  get inFlight(): number {
    return this.#tickets.size
  }

  /** Loading is over: requests are taken from now on, until a drain or until the engine fails. */
  attach(engine: GenerationEngine): void {
    this.#engine = engine
    if (this.#phase === 'loading') this.#phase = 'ready'
    void engine.failure.then(error => this.#fail(error))
  }

  /** The engine, for answers that need no ticket. @throws HttpError 503 unless it is there and alive */
  get engine(): GenerationEngine {
    if (this.#phase === 'failed') throw this.#failed()
    if (this.#engine === null) throw new HttpError('SY_HTTP_LOADING')
    return this.#engine
  }

  /** @throws HttpError 503 unless the server is ready */
  begin(): Ticket {
    const engine = this.engine
    if (this.#phase === 'draining') throw new HttpError('SY_HTTP_DRAINING')
    this.#checkQueue(engine)
    const controller = new AbortController()
    const ticket: Ticket = {
      engine,
      observer: this.metrics,
      maxBacklog: this.#maxBacklog,
      signal: controller.signal,
      abort: reason => controller.abort(reason),
      end: () => {
        if (this.#tickets.delete(ticket) && this.#tickets.size === 0) {
          for (const resolve of this.#idleWaiters.splice(0)) resolve()
        }
      },
    }
    this.#tickets.add(ticket)
    return ticket
  }

  /** Tickets are counted here, so a burst cannot slip past states that are a step old. @throws HttpError 503 */
  #checkQueue(engine: GenerationEngine): void {
    if (this.#tickets.size < this.#maxQueued) return
    const running = engine.state().reduce((sum, state) => sum + state.running, 0)
    const waiting = this.#tickets.size - running
    if (waiting >= this.#maxQueued) throw new HttpError('SY_HTTP_QUEUE_FULL', { waiting, limit: this.#maxQueued })
  }

  /** From now on new requests are refused and /health answers 503. */
  startDraining(): void {
    if (this.#phase !== 'failed') this.#phase = 'draining'
  }

  /** Resolves when no request holds a ticket. */
  idle(): Promise<void> {
    return this.#tickets.size === 0 ? Promise.resolve() : new Promise(resolve => this.#idleWaiters.push(resolve))
  }

  abortAll(reason: Error): void {
    for (const ticket of [...this.#tickets]) ticket.abort(reason)
  }

  #fail(error: Error): void {
    this.#phase = 'failed'
    this.#failure = error
    this.abortAll(this.#failed())
  }

  #failed(): HttpError {
    return new HttpError('SY_HTTP_ENGINE_FAILED', { reason: this.#failure?.message ?? 'unknown' })
  }
}
