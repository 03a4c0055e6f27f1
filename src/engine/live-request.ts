// A request as the main thread sees it: it turns what ranks report into text, log-probabilities and events, and decides
// how it ends. It knows neither ranks nor other requests.
import type { Tokenizer } from '../formats/tokenizer/index.js'
import type { RequestProgress } from '../scheduler/index.js'
import { EngineError } from './errors.js'
import { EventQueue } from './event-queue.js'
import type { FinishReason, GenerationEvent, GenerationRequest, TokenLogprob } from './request.js'
import type { RequestLogprobs } from './step-logprobs.js'
import { TextStream } from './text-stream.js'

/** What a step drew for a request. */
type Drawn = Pick<GenerationEvent, 'tokenIds' | 'logprobs'>

/** Milliseconds since the epoch, on the clock that ranks use too. */
const absoluteNow = (): number => performance.timeOrigin + performance.now()

export class LiveRequest {
  readonly id: string
  readonly dpRank: number
  readonly request: GenerationRequest
  readonly events: EventQueue<GenerationEvent>
  readonly #text: TextStream
  readonly #arrived = absoluteNow()
  readonly #abort: () => void
  #admitted = 0
  #firstToken = 0
  #completionTokens = 0
  #cachedTokens = 0
  /** Collected until the first event takes them along. */
  #promptLogprobs: (TokenLogprob | null)[] | null
  #ended = false

  /** @param abort runs when the caller gives the request up, by its signal or by leaving the stream */
  constructor(id: string, dpRank: number, request: GenerationRequest, tokenizer: Tokenizer | null, abort: () => void) {
    this.id = id
    this.dpRank = dpRank
    this.request = request
    this.#abort = abort
    this.events = new EventQueue<GenerationEvent>(abort)
    this.#text = new TextStream(tokenizer, request.sampling.stop, request.sampling.minTokens ?? 0)
    this.#promptLogprobs = request.promptTopLogprobs === undefined ? null : [null]
    request.signal?.addEventListener('abort', abort, { once: true })
  }

  get ended(): boolean {
    return this.#ended
  }

  /** Prompt and drawn tokens. */
  get tokens(): number {
    return this.request.inputIds.length + this.#completionTokens
  }

  /**
   * One report of its rank: text, ends, events.
   * @returns whether the rank still runs it although it has ended here (a stop text)
   */
  advance({ token, end, admittedAt, cachedTokens }: RequestProgress, found: RequestLogprobs | undefined): boolean {
    // By place, so that a prompt computed twice is reported once.
    found?.prompt.forEach((logprob, i) => {
      if (this.#promptLogprobs) this.#promptLogprobs[found.promptFrom + i] = logprob
    })
    this.#admitted ||= admittedAt
    this.#cachedTokens = cachedTokens
    if (end === 'not_finite') {
      this.fail(new EngineError('SY_ENGINE_NOT_FINITE', { tokens: this.tokens }))
      return false
    }
    if (token === null) {
      if (end !== null && this.request.sampling.maxTokens === 0) this.finish({}, 'length')
      return false
    }
    this.#firstToken ||= absoluteNow()
    this.#completionTokens++
    const drawn: Drawn = found?.drawn ? { tokenIds: [token], logprobs: [found.drawn] } : { tokenIds: [token] }
    if (end === 'stop') {
      this.finish({ ...drawn, text: this.#text.flush().text }, 'stop', token)
      return false
    }
    const { text, stopped } = this.#text.push(token)
    if (stopped) {
      this.finish({ ...drawn, text }, 'stop', this.#text.matched)
      return end === null
    }
    if (end === 'length') {
      const rest = this.#text.flush()
      const whole = { ...drawn, text: text + rest.text }
      if (rest.stopped) this.finish(whole, 'stop', this.#text.matched)
      else this.finish(whole, 'length')
    } else {
      const { dpRank } = this
      this.events.push({ text, ...drawn, ...this.#takePromptLogprobs(), finish: null, dpRank })
    }
    return false
  }

  /** Ends it early with the text that was held back. */
  cancel(): void {
    this.finish({ text: this.#text.flush().text }, 'abort')
  }

  finish(last: Partial<Drawn> & { text?: string }, reason: FinishReason, matched?: string | number): void {
    const now = absoluteNow()
    const usage = {
      promptTokens: this.request.inputIds.length,
      completionTokens: this.#completionTokens,
      cachedTokens: this.#cachedTokens,
    }
    const timings = {
      queueMs: Math.max(0, (this.#admitted || now) - this.#arrived),
      firstTokenMs: (this.#firstToken || now) - this.#arrived,
      totalMs: now - this.#arrived,
    }
    const finish = { reason, usage, timings, ...(matched === undefined ? {} : { matched }) }
    const { dpRank } = this
    this.events.push({ text: '', tokenIds: [], ...last, ...this.#takePromptLogprobs(), finish, dpRank })
    this.events.end()
    this.#detach()
  }

  fail(error: Error): void {
    this.events.fail(error)
    this.#detach()
  }

  #detach(): void {
    this.#ended = true
    this.request.signal?.removeEventListener('abort', this.#abort)
  }

  #takePromptLogprobs(): { promptLogprobs?: readonly (TokenLogprob | null)[] } {
    const promptLogprobs = this.#promptLogprobs
    if (promptLogprobs === null) return {}
    this.#promptLogprobs = null
    return { promptLogprobs }
  }
}
