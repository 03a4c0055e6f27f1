// The scheduler of one attention-DP rank: admits requests in order of arrival, forms each step's batch, commits results.
//
// A step takes one token of every decoding request and then prompt tokens up to the chunk size, so a long prompt never
// stops the others. A request is admitted when the pages of its whole need can be reserved; until then it waits.
// Nothing changes between `form` and `commit`, so a step that failed can be formed again.
import type { PagePool } from '../kvcache/index.js'
import { type BatchSlice, type LocalBatch, makeBatch } from './batch.js'
import { type EndReason, type RankRequest, RequestState } from './request-state.js'

export interface SchedulerLimits {
  /** Prompt tokens of one step. */
  readonly chunkedPrefillSize: number
  readonly maxRunningRequests: number
  /** Rows the output head takes in one step. */
  readonly logitRows: number
}

/** What a step did for one request. */
export interface RequestProgress {
  readonly id: string
  /** Token drawn, or null (prompt not finished, logits only). */
  readonly token: number | null
  readonly logprob: number
  readonly end: EndReason | null
  readonly admittedAt: number
  /** Row of the step's logits where this request's rows begin, and how many it has. */
  readonly logitRow: number
  readonly logitRows: number
}

export class Scheduler {
  readonly #pool: PagePool
  readonly #limits: SchedulerLimits
  readonly #waiting: RankRequest[] = []
  readonly #running: RequestState[] = []
  #steps = 0

  constructor(pool: PagePool, limits: SchedulerLimits) {
    this.#pool = pool
    this.#limits = limits
  }

  add(request: RankRequest): void {
    this.#waiting.push(request)
  }

  /** Forgets a request, wherever it is. Its pages are free at once. @returns whether it was there. */
  abort(id: string): boolean {
    const waiting = this.#waiting.findIndex(r => r.id === id)
    if (waiting >= 0) this.#waiting.splice(waiting, 1)
    const running = this.#running.find(r => r.id === id)
    if (running) this.#finish(running)
    return waiting >= 0 || running !== undefined
  }

  get runningCount(): number {
    return this.#running.length
  }

  get waitingCount(): number {
    return this.#waiting.length
  }

  get steps(): number {
    return this.#steps
  }

  /** The batch of the next step; IDLE_BATCH when there is nothing to do. */
  form(now: number): LocalBatch {
    this.#admit(now)
    const slices: BatchSlice[] = []
    let logitRoom = this.#limits.logitRows
    for (const state of this.#running) {
      if (state.inPrefill) continue
      slices.push({ state, from: state.computed, count: state.pending, sample: true, wantLogits: false })
      logitRoom--
    }
    let room = this.#limits.chunkedPrefillSize
    for (const state of this.#running) {
      if (!state.inPrefill || room === 0 || logitRoom === 0) continue
      const { wantLogits } = state.request
      const count = Math.min(state.pending, room, wantLogits ? logitRoom : Number.POSITIVE_INFINITY)
      const sample = count === state.pending && state.request.maxTokens > 0
      slices.push({ state, from: state.computed, count, sample, wantLogits })
      room -= count
      logitRoom -= wantLogits ? count : sample ? 1 : 0
    }
    for (const slice of slices) this.#takePages(slice)
    return makeBatch(slices)
  }

  #admit(now: number): void {
    while (this.#waiting.length > 0 && this.#running.length < this.#limits.maxRunningRequests) {
      const next = this.#waiting[0]!
      const need = this.#pool.pagesFor(next.inputIds.length + next.maxTokens)
      if (!this.#pool.reserve(need)) return
      this.#waiting.shift()
      this.#running.push(new RequestState(next, need, now))
    }
  }

  #takePages({ state, from, count }: BatchSlice): void {
    while (state.pages.length * this.#pool.pageSize < from + count) {
      state.pages.push(this.#pool.take())
      state.reserved--
    }
  }

  /** Makes a step's results visible. `sampled[i]` and `logprobs[i]` belong to logit row i. */
  commit(batch: LocalBatch, sampled: ArrayLike<number>, logprobs: ArrayLike<number>): RequestProgress[] {
    this.#steps++
    const progress: RequestProgress[] = []
    let row = 0
    for (const slice of batch.slices) {
      const { state } = slice
      const logitRow = row
      const logitRows = slice.wantLogits ? slice.count : slice.sample ? 1 : 0
      row += logitRows
      state.computed = slice.from + slice.count
      let token: number | null = null
      let end: EndReason | null = null
      if (slice.sample) {
        token = sampled[row - 1]!
        state.tokens[state.length++] = token
        if (state.request.endTokenIds.includes(token)) end = 'stop'
        else if (state.drawn >= state.request.maxTokens) end = 'length'
      } else if (state.request.maxTokens === 0 && !state.inPrefill) {
        end = 'length'
      }
      if (end) this.#finish(state)
      if (logitRows > 0 || end) {
        const logprob = token === null ? 0 : logprobs[row - 1]!
        progress.push({ id: state.id, token, logprob, end, admittedAt: state.admittedAt, logitRow, logitRows })
      }
    }
    return progress
  }

  #finish(state: RequestState): void {
    this.#running.splice(this.#running.indexOf(state), 1)
    this.#pool.release(state.pages)
    this.#pool.unreserve(state.reserved)
    state.pages.length = 0
    state.reserved = 0
  }
}
