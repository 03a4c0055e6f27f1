// The scheduler of one attention-DP rank: admits requests, forms each step's batch, commits results.
//
// A step takes one token of every decoding request and then prompt tokens up to the chunk size, so a decoding request
// waits for at most one chunk, however long the prompts are. Requests are admitted while the KV they will probably need is
// there; when it runs out all the same, the youngest are put back and later computed again, with the same result.
// Forming a batch changes no request's tokens, so a step that failed can be formed again.
//
// A device that runs ahead: `assume` counts a step's tokens as drawn while the device is still at work, so that `formAhead` can
// form the next step; `resolve` tells their ids later. The order is form n+1, resolve n, assume n+1: at most one token of a
// request is unknown, and every token below `computed` is known when pages are shared. `commit` is both at once.
import { Unreachable } from '../config/errors.js'
import type { PagePool } from '../kvcache/index.js'
import { PrefixTree } from '../kvcache/index.js'
import { AdmissionEstimate } from './admission.js'
import { type BatchSlice, type LocalBatch, makeBatch } from './batch.js'
import { KvLedger } from './kv-ledger.js'
import { drawnIn, type EndReason, type RankRequest, RequestState } from './request-state.js'

export interface SchedulerLimits {
  /** Prompt tokens of one step. */
  readonly chunkedPrefillSize: number
  readonly maxRunningRequests: number
  /** Rows the output head takes in one step. */
  readonly logitRows: number
  /** Keep computed prefixes for later requests. */
  readonly prefixCache: boolean
  /** 1 trusts the usual share of max_tokens to be drawn; larger admits fewer requests (--schedule-conservativeness). */
  readonly conservativeness: number
  /** Steps without prefill after each one with, while requests decode (--prefill-decode-interval). */
  readonly prefillDecodeInterval: number
}

/** What a step did for one request. */
export interface RequestProgress {
  readonly id: string
  /** Token drawn, or null (prompt not finished, logits only). */
  readonly token: number | null
  readonly logprob: number
  readonly end: EndReason | null
  readonly admittedAt: number
  /** Prompt tokens that did not have to be computed. */
  readonly cachedTokens: number
  /** Row of the step's logits where this request's rows begin, and how many it has. */
  readonly logitRow: number
  readonly logitRows: number
}

/** Counts since the start. */
export interface SchedulerCounters {
  readonly steps: number
  /** Prompt tokens computed (again, too) and prompt tokens found in the cache. */
  readonly prefilledTokens: number
  readonly cachedTokens: number
  readonly retractions: number
}

export class Scheduler {
  readonly #ledger: KvLedger
  readonly #limits: SchedulerLimits
  readonly #estimate: AdmissionEstimate
  /** In the order in which they will be admitted. */
  readonly #waiting: RequestState[] = []
  /** In the order of admission: the last ones are retracted first. */
  readonly #running: RequestState[] = []
  #arrivals = 0
  #steps = 0
  #prefilledTokens = 0
  #cachedTokens = 0
  #retractions = 0
  #stepsSincePrefill = Number.POSITIVE_INFINITY
  paused = false

  constructor(pool: PagePool, limits: SchedulerLimits) {
    this.#ledger = new KvLedger(pool, new PrefixTree(pool), limits.prefixCache)
    this.#limits = limits
    this.#estimate = new AdmissionEstimate(limits.conservativeness)
  }

  add(request: RankRequest): void {
    this.#enqueue(new RequestState(request, this.#arrivals++))
  }

  /** Behind all of its priority that came before it; a retracted request keeps its place. */
  #enqueue(state: RequestState): void {
    const before = (a: RequestState, b: RequestState) =>
      a.request.priority !== b.request.priority ? a.request.priority > b.request.priority : a.arrival < b.arrival
    const at = this.#waiting.findIndex(other => before(state, other))
    this.#waiting.splice(at < 0 ? this.#waiting.length : at, 0, state)
  }

  /** Forgets a request, wherever it is. Its pages are free at once. @returns whether it was there. */
  abort(id: string): boolean {
    const waiting = this.#waiting.findIndex(s => s.id === id)
    if (waiting >= 0) this.#waiting.splice(waiting, 1)
    const running = this.#running.find(s => s.id === id)
    if (running) this.#finish(running)
    return waiting >= 0 || running !== undefined
  }

  /** Forgets cached prefixes that no request uses. @returns pages freed */
  flushCache(): number {
    return this.#ledger.tree.clear()
  }

  get runningCount(): number {
    return this.#running.length
  }

  get waitingCount(): number {
    return this.#waiting.length
  }

  get usedTokens(): number {
    return this.#ledger.usedTokens
  }

  get counters(): SchedulerCounters {
    const [prefilledTokens, cachedTokens, retractions] = [this.#prefilledTokens, this.#cachedTokens, this.#retractions]
    return { steps: this.#steps, prefilledTokens, cachedTokens, retractions }
  }

  /** It would prefill now if it were let: prompts are waiting or under way. */
  get hasPrefill(): boolean {
    return this.#waiting.length > 0 || this.#running.some(s => s.inPrefill)
  }

  get hasDecode(): boolean {
    return this.#running.some(s => !s.inPrefill)
  }

  /**
   * The batch of the next step; IDLE_BATCH when there is nothing to do.
   * @param mayPrefill false holds prompts back for this step (alignment over DP ranks)
   */
  form(now: number, mayPrefill = true): LocalBatch {
    return makeBatch(this.#slices(now, mayPrefill, false)!)
  }

  /**
   * The batch that follows a step whose results are assumed, not known. null when they must be known first: nothing is left to
   * do without them, or a request would have to be put back.
   */
  formAhead(now: number, mayPrefill = true): LocalBatch | null {
    const slices = this.#slices(now, mayPrefill, true)
    return slices && slices.length > 0 ? makeBatch(slices) : null
  }

  #slices(now: number, mayPrefill: boolean, ahead: boolean): BatchSlice[] | null {
    if (this.paused) return []
    const slices = this.#decodes(ahead)
    if (slices === null) return null
    const rested = this.#stepsSincePrefill >= this.#limits.prefillDecodeInterval
    if (slices.length === 0 || (mayPrefill && rested)) {
      if (mayPrefill) this.#admit(now)
      this.#prefills(slices)
      while (slices.length === 0 && this.#running.length > 1 && !ahead) {
        // Nobody could take a step: the youngest gives its pages to the oldest.
        this.#retract(this.#running.at(-1)!)
        this.#prefills(slices)
      }
    }
    return slices
  }

  /**
   * One token of every request that decodes, oldest first; the youngest make room when pages have run out, or, when the last
   * step's results are not known yet, null.
   */
  #decodes(ahead: boolean): BatchSlice[] | null {
    const slices: BatchSlice[] = []
    for (const state of [...this.#running]) {
      if (state.inPrefill || state.finishing) continue
      while (this.#running.includes(state) && this.#ledger.cover(state, state.length) < state.length) {
        if (ahead) return null
        this.#retract(this.#victim(state))
      }
      if (!this.#running.includes(state)) continue
      slices.push({ state, from: state.computed, count: 1, sample: true, wantLogits: false, extend: false })
    }
    return slices.filter(({ state }) => this.#running.includes(state))
  }

  /** The youngest of the lowest priority; requests that report logits as they go are not interrupted. */
  #victim(needy: RequestState): RequestState {
    let victim = needy
    for (const state of this.#running) {
      if (state.request.wantLogits) continue
      if (state.request.priority <= victim.request.priority) victim = state
    }
    return victim
  }

  #prefills(slices: BatchSlice[]): void {
    let room = this.#limits.chunkedPrefillSize
    let logitRoom = this.#limits.logitRows - slices.length
    const chosen = new Set(slices.map(s => s.state))
    const starting: RequestState[] = []
    for (const state of this.#running) {
      if (!state.inPrefill || room === 0 || logitRoom === 0 || chosen.has(state)) continue
      this.#ledger.adoptPrefix(state)
      if (starting.some(other => this.#willShare(other, state))) continue
      const { wantLogits } = state.request
      const wanted = Math.min(state.pending, room, wantLogits ? logitRoom : Number.POSITIVE_INFINITY)
      const count = this.#ledger.cover(state, state.computed + wanted) - state.computed
      if (count <= 0) continue
      const sample = count === state.pending && state.request.maxTokens > 0
      slices.push({ state, from: state.computed, count, sample, wantLogits, extend: true })
      starting.push(state)
      room -= count
      logitRoom -= wantLogits ? count : sample ? 1 : 0
    }
  }

  /** `other` computes in this step a page that `state`, not begun yet, would compute too: better to wait and read it. */
  #willShare(other: RequestState, state: RequestState): boolean {
    if (!this.#limits.prefixCache || state.request.wantLogits) return false
    if (state.pages.length !== state.path.length) return false
    const { pageSize } = this.#ledger.pool
    const end = state.computed + pageSize
    if (end >= state.length || end > other.length || other.computed > state.computed) return false
    for (let i = 0; i < end; i++) if (state.tokens[i] !== other.tokens[i]) return false
    return true
  }

  #admit(now: number): void {
    while (this.#waiting.length > 0 && this.#running.length < this.#limits.maxRunningRequests) {
      const next = this.#waiting[0]!
      if (this.#running.length > 0 && !this.#fits(next)) return
      this.#waiting.shift()
      next.admittedAt ||= now
      this.#running.push(next)
    }
  }

  /** Pages for its prompt and for what it and the running ones will probably draw. */
  #fits(next: RequestState): boolean {
    const { pool, availablePages } = this.#ledger
    const future = (s: RequestState) => s.pending + this.#estimate.tokens(s.remaining)
    let pages = 0
    for (const s of [...this.#running, next]) pages += pool.pagesFor(s.computed + future(s)) - s.pages.length
    return pages <= availablePages
  }

  #retract(state: RequestState): void {
    this.#retractions++
    this.#estimate.retracted(this.#running)
    this.#ledger.release(state)
    state.computed = 0
    this.#running.splice(this.#running.indexOf(state), 1)
    this.#enqueue(state)
  }

  /** Makes a step's results visible. `sampled[i]` and `logprobs[i]` belong to logit row i. */
  commit(batch: LocalBatch, sampled: ArrayLike<number>, logprobs: ArrayLike<number>): RequestProgress[] {
    return this.#walk(batch, { sampled, logprobs }, true)
  }

  /** The step is on its way: what it computes counts as computed, what it draws as drawn, by row instead of by id. */
  assume(batch: LocalBatch): void {
    this.#walk(batch, null, true)
  }

  /** The results of a step that was assumed. Requests that have ended or were aborted since take no part. */
  resolve(batch: LocalBatch, sampled: ArrayLike<number>, logprobs: ArrayLike<number>): RequestProgress[] {
    return this.#walk(batch, { sampled, logprobs }, false)
  }

  /** @param results null: not known yet */
  #walk(batch: LocalBatch, results: StepResults | null, assume: boolean): RequestProgress[] {
    const progress: RequestProgress[] = []
    let row = 0
    let prefilled = 0
    if (results) {
      this.#steps++
      this.#estimate.decay()
    }
    for (const slice of batch.slices) {
      const logitRow = row
      const logitRows = slice.wantLogits ? slice.count : slice.sample ? 1 : 0
      row += logitRows
      if (slice.extend) prefilled += slice.count
      if (slice.state.ended) continue
      if (assume) this.#assumeSlice(slice, row - 1)
      const found = results && this.#resolveSlice(slice, logitRow, logitRows, results)
      if (found) progress.push(found)
    }
    if (assume) {
      this.#prefilledTokens += prefilled
      this.#stepsSincePrefill = prefilled > 0 ? 0 : this.#stepsSincePrefill + 1
    }
    return progress
  }

  #assumeSlice({ state, from, count, sample }: BatchSlice, row: number): void {
    if (state.awaited) throw new Unreachable(`request ${state.id} goes two steps beyond what is known of it`)
    state.computed = from + count
    this.#ledger.share(state)
    if (sample) state.tokens[state.length++] = drawnIn(row)
  }

  /** @returns what to report, if anything */
  #resolveSlice(
    { state, from, count, sample }: BatchSlice,
    logitRow: number,
    logitRows: number,
    { sampled, logprobs }: StepResults,
  ): RequestProgress | null {
    const last = logitRow + logitRows - 1
    let token: number | null = null
    let end: EndReason | null = null
    if (sample) {
      if (!Number.isFinite(logprobs[last]!)) {
        this.#finish(state)
        return endedBy('not_finite', state, logitRow, logitRows)
      }
      token = sampled[last]!
      if (state.drawn === 1) this.#cachedTokens += state.cached
      state.tokens[from + count] = token
      if (state.request.endTokenIds.includes(token)) end = 'stop'
      else if (state.remaining === 0) end = 'length'
    } else if (state.request.maxTokens === 0 && !state.inPrefill) {
      end = 'length'
    }
    if (end) this.#finish(state)
    if (logitRows === 0 && !end) return null
    const logprob = token === null ? 0 : logprobs[last]!
    const { id, admittedAt, cached } = state
    return { id, token, logprob, end, admittedAt, cachedTokens: cached, logitRow, logitRows }
  }

  #finish(state: RequestState): void {
    state.ended = true
    this.#running.splice(this.#running.indexOf(state), 1)
    this.#ledger.release(state)
  }
}

interface StepResults {
  readonly sampled: ArrayLike<number>
  readonly logprobs: ArrayLike<number>
}

/** An end without a token. */
function endedBy(end: EndReason, state: RequestState, logitRow: number, logitRows: number): RequestProgress {
  const { id, admittedAt, cached } = state
  return { id, token: null, logprob: 0, end, admittedAt, cachedTokens: cached, logitRow, logitRows }
}
