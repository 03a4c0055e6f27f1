// A GenerationEngine that computes nothing: every request gets its tokens at once or at a steady pace. It measures and
// tests what stands above the engine. Its tokens are the words of one sentence, its tokenizer one id a byte.
import { setImmediate as nextTurn, setTimeout as pause } from 'node:timers/promises'
import { type Clock, systemClock } from '../runtime/clock.js'
import { checkRequest } from './check-request.js'
import { EventQueue } from './event-queue.js'
import type {
  DpRankState,
  FinishReason,
  GenerationEngine,
  GenerationEvent,
  GenerationRequest,
  TextTokenizer,
} from './request.js'

export interface NullEngineOptions {
  /** Milliseconds from step to step; every running request gets one token a step. 0: a step each turn of the event loop. */
  readonly stepMs?: number
  readonly contextLength?: number
  readonly maxRunningRequests?: number
  readonly dpRanks?: number
  readonly clock?: Clock
  /** Comes back when `clock` is this many milliseconds further. */
  readonly sleep?: (ms: number) => Promise<unknown>
}

const WORDS = 'the yard takes every train apart and sends each wagon to its own track '.split(/(?<= )/)
/** Ids below this are bytes. */
const FIRST_WORD = 256
const VOCAB = FIRST_WORD + WORDS.length

const tokenizer: TextTokenizer = {
  hasChatTemplate: true,
  encode: text => [...Buffer.from(text)],
  decode: ids =>
    Buffer.concat(
      ids.map(id => (id < FIRST_WORD ? Buffer.of(id) : Buffer.from(WORDS[id - FIRST_WORD] ?? ''))),
    ).toString(),
  applyChatTemplate: messages => messages.map(m => `${m.role}: ${m.content}\n`).join(''),
  tokenBytes: id => (id < FIRST_WORD ? Uint8Array.of(id) : Buffer.from(WORDS[id - FIRST_WORD] ?? '')),
}

interface Live {
  readonly request: GenerationRequest
  readonly events: EventQueue<GenerationEvent>
  readonly dpRank: number
  readonly arrived: number
  firstToken: number
  made: number
  readonly detach: () => void
}

export class NullEngine implements GenerationEngine {
  readonly modelName = 'null'
  readonly vocabSize = VOCAB
  readonly contextLength: number
  readonly tokenizer = tokenizer
  readonly failure: Promise<Error> = new Promise(() => {})
  readonly #stepMs: number
  readonly #limit: number
  readonly #dpRanks: number
  readonly #clock: Clock
  readonly #sleep: (ms: number) => Promise<unknown>
  readonly #running = new Map<string, Live>()
  readonly #waiting = new Map<string, Live>()
  #counter = 0
  #steps = 0
  #prefilled = 0
  #looping = false
  #closed = false

  constructor(options: NullEngineOptions = {}) {
    this.#stepMs = options.stepMs ?? 0
    this.contextLength = options.contextLength ?? 1 << 20
    this.#limit = options.maxRunningRequests ?? 1 << 16
    this.#dpRanks = options.dpRanks ?? 1
    this.#clock = options.clock ?? systemClock
    this.#sleep = options.sleep ?? pause
  }

  generate(request: GenerationRequest): AsyncIterable<GenerationEvent> {
    checkRequest(request, {
      contextLength: this.contextLength,
      poolTokens: this.contextLength,
      vocabSize: VOCAB,
      dpRanks: this.#dpRanks,
      eosTokenIds: [],
    })
    const id = `null-${this.#counter}`
    const end = () => this.#finish(id, 'abort')
    const { signal } = request
    const live: Live = {
      request,
      events: new EventQueue(end),
      dpRank: request.routedDpRank ?? this.#counter % this.#dpRanks,
      arrived: this.#clock.now(),
      firstToken: 0,
      made: 0,
      detach: () => signal?.removeEventListener('abort', end),
    }
    this.#counter++
    this.#waiting.set(id, live)
    if (signal?.aborted) end()
    else signal?.addEventListener('abort', end, { once: true })
    void this.#loop()
    return live.events
  }

  async #loop(): Promise<void> {
    if (this.#looping) return
    this.#looping = true
    let next = this.#clock.now()
    while (!this.#closed && this.#running.size + this.#waiting.size > 0) {
      // A step that is late is not made up for, as in an engine.
      next = Math.max(next + this.#stepMs, this.#clock.now())
      const wait = next - this.#clock.now()
      if (wait >= 1) await this.#sleep(wait)
      else await nextTurn()
      this.#step()
    }
    this.#looping = false
  }

  #step(): void {
    this.#steps++
    for (const [id, live] of this.#waiting) {
      if (this.#running.size >= this.#limit) break
      this.#waiting.delete(id)
      this.#running.set(id, live)
      this.#prefilled += live.request.inputIds.length
    }
    for (const [id, live] of this.#running) {
      const { maxTokens, minTokens = 0, stopTokenIds, ignoreEos } = live.request.sampling
      live.firstToken ||= this.#clock.now()
      const word = live.made % WORDS.length
      live.made++
      const token = FIRST_WORD + word
      const stops = stopTokenIds.includes(token) && !ignoreEos && live.made > minTokens
      const event = { text: stops ? '' : WORDS[word]!, tokenIds: [token], dpRank: live.dpRank }
      if (live.made < maxTokens && !stops) live.events.push({ ...event, finish: null })
      else this.#finish(id, stops ? 'stop' : 'length', event)
    }
  }

  #finish(id: string, reason: FinishReason, last?: Pick<GenerationEvent, 'text' | 'tokenIds' | 'dpRank'>): void {
    const live = this.#running.get(id) ?? this.#waiting.get(id)
    if (live === undefined) return
    this.#running.delete(id)
    this.#waiting.delete(id)
    live.detach()
    const now = this.#clock.now()
    const firstTokenMs = (live.firstToken || now) - live.arrived
    live.events.push({
      text: '',
      tokenIds: [],
      dpRank: live.dpRank,
      ...last,
      finish: {
        reason,
        usage: { promptTokens: live.request.inputIds.length, completionTokens: live.made, cachedTokens: 0 },
        timings: { queueMs: 0, firstTokenMs, totalMs: now - live.arrived },
      },
    })
    live.events.end()
  }

  state(): readonly DpRankState[] {
    return Array.from({ length: this.#dpRanks }, (_, dpRank) => {
      const mine = (lives: Iterable<Live>) => [...lives].filter(live => live.dpRank === dpRank)
      const running = mine(this.#running.values())
      return {
        dpRank,
        running: running.length,
        waiting: mine(this.#waiting.values()).length,
        usedTokens: running.reduce((sum, live) => sum + live.request.inputIds.length + live.made, 0),
        totalTokens: this.contextLength,
        steps: this.#steps,
        prefilledTokens: this.#prefilled,
        cachedTokens: 0,
        retractions: 0,
        dispatchSteps: { none: 0, normal: 0, low_latency: 0 },
        voteWaitMs: 0,
        attentionPairs: 0,
      }
    })
  }

  info(): Readonly<Record<string, unknown>> {
    return { model_name: this.modelName, null_engine: true, maxRunningRequests: this.#limit }
  }

  async close(): Promise<void> {
    for (const id of [...this.#running.keys(), ...this.#waiting.keys()]) this.#finish(id, 'abort')
    this.#closed = true
  }
}
