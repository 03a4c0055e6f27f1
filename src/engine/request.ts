// What a caller asks of the engine and what it gets back. The server, the CLI and embedders all speak this.

/** How tokens are drawn. Defaults are greedy and unlimited by anything but the context. */
export interface SamplingParams {
  /** 0 = greedy. */
  readonly temperature: number
  /** 1 = off. */
  readonly topP: number
  /** 0 = off. */
  readonly topK: number
  /** 0 = off. */
  readonly minP: number
  /** 64-bit seed of the noise; null: the engine draws one and reports it. */
  readonly seed: bigint | null
  readonly maxTokens: number
  /** Text that ends the output; it is not part of it. */
  readonly stop: readonly string[]
  /** Token ids that end the output, beside the model's own. */
  readonly stopTokenIds: readonly number[]
  /** Go on after an end-of-text token. */
  readonly ignoreEos: boolean
  /** No end token and no stop text ends the output before this many tokens; absent = 0. */
  readonly minTokens?: number
  /** -2 to 2, subtracted once from the logit of every token the output has; absent = 0. */
  readonly presencePenalty?: number
  /** -2 to 2, subtracted for every time a token occurs in the output; absent = 0. */
  readonly frequencyPenalty?: number
  /** Above 0, at most 2: divides positive and multiplies negative logits of tokens of prompt and output; absent = 1. */
  readonly repetitionPenalty?: number
  /** Token id → what is added to its logit, -100 to 100. */
  readonly logitBias?: Readonly<Record<number, number>>
}

/** Most alternatives a request may ask for beside each log-probability. */
export const MAX_TOP_LOGPROBS = 20

/** Natural log of a token's probability under the model, before temperature and edits, and of the likeliest tokens. */
export interface TokenLogprob {
  readonly token: number
  readonly logprob: number
  readonly top: readonly { readonly token: number; readonly logprob: number }[]
}

export const GREEDY: SamplingParams = {
  temperature: 0,
  topP: 1,
  topK: 0,
  minP: 0,
  seed: null,
  maxTokens: 16,
  stop: [],
  stopTokenIds: [],
  ignoreEos: false,
}

export interface GenerationRequest {
  /** Unique; made up when absent. */
  readonly id?: string
  readonly inputIds: readonly number[]
  readonly sampling: SamplingParams
  /** Ends the request early; its KV pages are free before the next step. */
  readonly signal?: AbortSignal
  /** Attention-DP rank that must run it (SGLang's routed_dp_rank). */
  readonly routedDpRank?: number
  /** Report log-probabilities of drawn tokens with this many alternatives (0 to 20); absent: none. */
  readonly topLogprobs?: number
  /** The same for the prompt. With it `maxTokens` may be 0. */
  readonly promptTopLogprobs?: number
  /** A probe of /health_generate: steps made of probes only are marked in the plan and stay out of statistics. */
  readonly isHealthCheck?: boolean
  /** Larger is admitted first and retracted last; 0 when absent. */
  readonly priority?: number
}

/** A request as programs write it: sampling that is left open is greedy. */
export type OpenRequest = Omit<GenerationRequest, 'sampling'> & { readonly sampling?: Partial<SamplingParams> }

export const withDefaults = (request: OpenRequest): GenerationRequest => ({
  ...request,
  sampling: { ...GREEDY, ...request.sampling },
})

/** `stop`: an end token or stop text; `length`: max tokens or context; `abort`: the caller's signal. */
export type FinishReason = 'stop' | 'length' | 'abort'

export interface Usage {
  readonly promptTokens: number
  readonly completionTokens: number
  /** Prompt tokens found in a cache. */
  readonly cachedTokens: number
}

/** Milliseconds from the request's arrival. */
export interface Timings {
  readonly queueMs: number
  readonly firstTokenMs: number
  readonly totalMs: number
}

/** How a request ended. */
export interface Finish {
  readonly reason: FinishReason
  readonly usage: Usage
  readonly timings: Timings
  /** What ended it, where that is one thing: the stop text or the end token. */
  readonly matched?: string | number
}

/** One event a step and request. `text` never holds half a character and never a piece of a stop text. */
export interface GenerationEvent {
  readonly text: string
  readonly tokenIds: readonly number[]
  /** One a token of `tokenIds`, when asked for. */
  readonly logprobs?: readonly TokenLogprob[]
  /** With the first event, when asked for: one a prompt token; the first has none. */
  readonly promptLogprobs?: readonly (TokenLogprob | null)[]
  readonly finish: Finish | null
  /** Attention-DP rank that runs the request. */
  readonly dpRank?: number
}

/** State of one attention-DP rank's scheduler, as of its last step. */
export interface DpRankState {
  readonly dpRank: number
  readonly running: number
  readonly waiting: number
  readonly usedTokens: number
  readonly totalTokens: number
  readonly steps: number
  /** Prompt tokens computed, and prompt tokens found in the prefix cache, since the start. */
  readonly prefilledTokens: number
  readonly cachedTokens: number
  readonly retractions: number
  /** Steps with tokens by how rows reached their experts. */
  readonly dispatchSteps: Readonly<Record<'none' | 'normal' | 'low_latency', number>>
  /** Milliseconds the last step with tokens waited for the votes of other ranks. */
  readonly voteWaitMs: number
  /** Causal (query, key) pairs of the last step's batch. */
  readonly attentionPairs: number
  /** Of a rank on a GPU. */
  readonly device?: DeviceState
}

export interface DeviceState {
  /** Steps replayed from captured graphs. */
  readonly graphSteps: number
  /** Kernels and copies of the last step, with those around its graph; 0 when it was not replayed. Stamps of traces are left out. */
  readonly graphLaunches: number
}

/** The state of a rank that has done nothing yet. */
export const freshState = (dpRank: number, totalTokens: number): DpRankState => ({
  dpRank,
  running: 0,
  waiting: 0,
  usedTokens: 0,
  totalTokens,
  steps: 0,
  prefilledTokens: 0,
  cachedTokens: 0,
  retractions: 0,
  dispatchSteps: { none: 0, normal: 0, low_latency: 0 },
  voteWaitMs: 0,
  attentionPairs: 0,
})

/** The engine as servers and tools see it. Implementations: engine/engine.ts. */
export interface GenerationEngine {
  /** Name under which the model is served. */
  readonly modelName: string
  /** Longest prompt plus output, in tokens. */
  readonly contextLength: number
  readonly vocabSize: number
  /** null without a tokenizer.json: only token ids are understood then. */
  readonly tokenizer: TextTokenizer | null
  /** `tokenizer.encode` elsewhere than in the caller's thread, for long texts; absent: there is no other place. */
  encodeAside?(text: string, options: { readonly addSpecialTokens: boolean }): Promise<number[]>
  /** Checks the request (throws RequestError before anything runs), queues it and streams its tokens. */
  generate(request: GenerationRequest): AsyncIterable<GenerationEvent>
  state(): readonly DpRankState[]
  /** Resolved flags and facts for /server_info. */
  info(): Readonly<Record<string, unknown>>
  /** Settles with the error when the engine dies; never before. */
  readonly failure: Promise<Error>
  /** Finishes what runs (at most `limitMs`, then aborts it), then stops the ranks. Idempotent. */
  close(limitMs?: number): Promise<void>
}

/** What the server needs of a tokenizer. Implementation: formats/tokenizer. */
export interface TextTokenizer {
  /** Special tokens (bos) are added unless told otherwise; a chat template writes them itself. */
  encode(text: string, options?: { readonly addSpecialTokens?: boolean }): number[]
  decode(ids: readonly number[], options?: { readonly skipSpecialTokens?: boolean }): string
  /** Renders the chat template to text. Throws RequestError when the model has none. */
  applyChatTemplate(messages: readonly ChatMessage[], options?: Readonly<Record<string, unknown>>): string
  readonly hasChatTemplate: boolean
  /** The bytes a token stands for, or null where the tokenizer cannot tell. */
  tokenBytes?(id: number): Uint8Array | null
}

export interface ChatMessage {
  readonly role: string
  readonly content: string
  readonly name?: string
}
