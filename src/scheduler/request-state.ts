// A request as its attention-DP rank sees it: its tokens, how far they are computed, and its KV pages.

/** Changes to a request's logits before a draw; what they mean is said in engine/logit-edits.ts. */
export interface LogitEdits {
  /** 1 = off. */
  readonly repetitionPenalty: number
  /** 0 = off. */
  readonly frequencyPenalty: number
  /** 0 = off. */
  readonly presencePenalty: number
  /** No end token is drawn before this many others. */
  readonly minTokens: number
  readonly biasTokens: readonly number[]
  /** One a token of `biasTokens`. */
  readonly biasValues: readonly number[]
}

/** What a rank is told about a request. Plain data that crosses threads. */
export interface RankRequest {
  readonly id: string
  /** 32-bit word that names the request in replica choice. */
  readonly key: number
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
  /** Absent: logits are drawn from as they are. */
  readonly edits?: LogitEdits
  /** Alternatives to report beside the log-probability of each drawn token; absent: report nothing. */
  readonly topLogprobs?: number
  /** The same for the tokens of the prompt; needs `wantLogits`. The logits themselves then stay in the rank. */
  readonly promptTopLogprobs?: number
  /** Send the logits of every prompt position. */
  readonly wantLogits: boolean
  /** A probe, not a user's request. */
  readonly isHealthCheck: boolean
}

export type EndReason = 'stop' | 'length'

export class RequestState {
  readonly request: RankRequest
  /** Prompt, then drawn tokens. */
  readonly tokens: Int32Array
  length: number
  /** Tokens whose keys and values are in the cache. */
  computed = 0
  /** KV pages held, in order of position. */
  readonly pages: number[] = []
  /** Pages promised and not yet taken. */
  reserved: number
  readonly key: number
  /** When it was admitted, on the rank's clock. */
  readonly admittedAt: number

  constructor(request: RankRequest, reserved: number, admittedAt: number) {
    this.request = request
    this.length = request.inputIds.length
    this.tokens = new Int32Array(this.length + request.maxTokens)
    this.tokens.set(request.inputIds)
    this.reserved = reserved
    this.key = request.key
    this.admittedAt = admittedAt
  }

  get id(): string {
    return this.request.id
  }

  get drawn(): number {
    return this.length - this.request.inputIds.length
  }

  /** Tokens that wait to be computed: the rest of the prompt, or the one drawn last. */
  get pending(): number {
    return this.length - this.computed
  }

  get inPrefill(): boolean {
    return this.computed < this.request.inputIds.length
  }
}
