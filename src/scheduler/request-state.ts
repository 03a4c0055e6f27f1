// A request as its attention-DP rank sees it: its tokens, how far they are computed, and its KV pages.
import type { PrefixNode } from '../kvcache/index.js'

/** Penalties, bias and a minimum of tokens: what changes a row of logits before the draw (engine/logit-edits.ts). */
export interface LogitEdits {
  readonly repetitionPenalty: number
  readonly frequencyPenalty: number
  readonly presencePenalty: number
  readonly minTokens: number
  readonly biasTokens: readonly number[]
  readonly biasValues: readonly number[]
}

/** What a rank is told about a request. Plain data that crosses threads. */
export interface RankRequest {
  readonly id: string
  readonly inputIds: Int32Array
  /** Most tokens to draw. 0: compute the prompt's logits only. */
  readonly maxTokens: number
  readonly temperature: number
  readonly topP: number
  readonly topK: number
  readonly minP: number
  readonly seedLow: number
  readonly seedHigh: number
  /** Tokens that end the output (the model's own, unless ignored, and the request's). */
  readonly endTokenIds: readonly number[]
  /** Send the logits of every prompt position. */
  readonly wantLogits: boolean
  /** A probe, not a user's request. */
  readonly isHealthCheck: boolean
  /** Larger goes first. */
  readonly priority: number
  /** Changes to logits before the draw; absent when there are none. */
  readonly edits?: LogitEdits
  /** Report the log-probability of each drawn token and of so many best ones. */
  readonly topLogprobs?: number
  /** The same for the tokens of the prompt. */
  readonly promptTopLogprobs?: number
}

/** `not_finite`: the logits it was to be drawn from are no numbers. */
export type EndReason = 'stop' | 'length' | 'not_finite'

/** Stands for the id that row `row` of the step on its way will draw. Ids themselves are never negative. */
export const drawnIn = (row: number): number => -1 - row

/** The row behind such a number. */
export const rowOfDraw = (token: number): number => -1 - token

export class RequestState {
  readonly request: RankRequest
  /** Prompt, then drawn tokens. The last may be negative: drawn in a row of a step that is on its way (`drawnIn`). */
  readonly tokens: Int32Array
  length: number
  /** Tokens whose keys and values are in the cache. */
  computed = 0
  /** Prompt tokens that were found in the cache. */
  cached = 0
  /** KV pages held, in order of position. The first `path.length` of them lie in the prefix tree. */
  readonly pages: number[] = []
  readonly path: PrefixNode[] = []
  readonly #keys: Int32Array
  #hashed = 0
  /** Order of arrival at this rank. */
  readonly arrival: number
  /** It runs no more and never will: finished, or aborted while it ran. */
  ended = false
  /** When it was first admitted, on the rank's clock; 0 while it has never been. */
  admittedAt = 0

  constructor(request: RankRequest, arrival: number) {
    this.request = request
    this.length = request.inputIds.length
    this.tokens = new Int32Array(this.length + request.maxTokens)
    this.tokens.set(request.inputIds)
    this.#keys = new Int32Array(this.tokens.length)
    this.arrival = arrival
  }

  /**
   * 32-bit word that names the token at `position` in replica choice: a hash of all tokens up to it. Requests with a
   * common prefix get the same words there, so a page that one computed serves the others bit for bit.
   */
  keyAt(position: number): number {
    for (; this.#hashed <= position; this.#hashed++) {
      const before = this.#hashed === 0 ? 0x811c9dc5 : this.#keys[this.#hashed - 1]!
      this.#keys[this.#hashed] = Math.imul(before ^ this.tokens[this.#hashed]!, 0x01000193)
    }
    return this.#keys[position]!
  }

  get id(): string {
    return this.request.id
  }

  get promptLength(): number {
    return this.request.inputIds.length
  }

  get drawn(): number {
    return this.length - this.promptLength
  }

  /** Tokens it may still draw. */
  get remaining(): number {
    return this.request.maxTokens - this.drawn
  }

  /** Tokens that wait to be computed: the rest of the prompt, or the one drawn last. */
  get pending(): number {
    return this.length - this.computed
  }

  /** The id of its last token is not known yet. */
  get awaited(): boolean {
    return this.tokens[this.length - 1]! < 0
  }

  /** Nothing is left to compute: it ends when the step on its way is known. */
  get finishing(): boolean {
    return this.remaining === 0 && !this.inPrefill
  }

  /** Its prompt is not computed yet, or its cache was taken away and has to be computed again. */
  get inPrefill(): boolean {
    return this.computed < this.promptLength || this.pending > 1
  }
}
