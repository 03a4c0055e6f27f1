// A GenerationEngine without a model, for tests of what stands above the engine: it continues a prompt with the prompt's
// own tokens, one a step. Its tokenizer is bytes (id = byte + 3) with bos 0, eos 1. Real in everything the contract
// says: abort, context, failure, close, states. Prompts that begin with FAIL or REFUSE do what they say.
import { errorArea } from '../src/config/errors.js'
import type {
  ChatMessage,
  DpRankState,
  GenerationEngine,
  GenerationEvent,
  GenerationRequest,
  TextTokenizer,
} from '../src/engine/request.js'

class EchoError extends errorArea('Echo', {
  SY_ECHO_REFUSED: { status: 400, message: 'the echo refuses', remedy: 'say something else' },
  SY_ECHO_BROKE: { status: 500, message: 'the echo broke', remedy: 'shout again' },
}) {}

const FIRST_BYTE = 3

export const byteTokenizer: TextTokenizer = {
  hasChatTemplate: true,
  encode: (text, { addSpecialTokens = true } = {}) => [
    ...(addSpecialTokens ? [0] : []),
    ...[...Buffer.from(text)].map(byte => byte + FIRST_BYTE),
  ],
  decode: ids => Buffer.from(ids.filter(id => id >= FIRST_BYTE).map(id => id - FIRST_BYTE)).toString(),
  applyChatTemplate: (messages: readonly ChatMessage[], options) =>
    messages.map(m => `${m.role}: ${m.content}\n`).join('') + (options?.['add_generation_prompt'] ? 'assistant: ' : ''),
}

export interface EchoOptions {
  readonly contextLength?: number
  /** Milliseconds a step. 0: as fast as the event loop goes. */
  readonly stepMs?: number
  readonly tokenizer?: TextTokenizer | null
  readonly info?: Readonly<Record<string, unknown>>
}

export class EchoEngine implements GenerationEngine {
  readonly modelName = 'echo'
  readonly vocabSize = 256 + FIRST_BYTE
  readonly contextLength: number
  readonly tokenizer: TextTokenizer | null
  readonly failure: Promise<Error>
  /** Every request that came, for tests to look at. */
  readonly requests: GenerationRequest[] = []
  closed = false
  readonly #stepMs: number
  readonly #info: Readonly<Record<string, unknown>>
  #running = 0
  #steps = 0
  #die!: (error: Error) => void

  constructor(options: EchoOptions = {}) {
    this.contextLength = options.contextLength ?? 256
    this.tokenizer = options.tokenizer === undefined ? byteTokenizer : options.tokenizer
    this.#stepMs = options.stepMs ?? 0
    this.#info = options.info ?? {}
    this.failure = new Promise(resolve => {
      this.#die = resolve
    })
  }

  die(error: Error): void {
    this.#die(error)
  }

  async *generate(request: GenerationRequest): AsyncGenerator<GenerationEvent, void, undefined> {
    const { inputIds, sampling, signal } = request
    this.requests.push(request)
    const prompt = byteTokenizer.decode(inputIds)
    if (prompt.startsWith('REFUSE')) throw new EchoError('SY_ECHO_REFUSED', { param: 'prompt' })
    const decoder = new TextDecoder()
    const limit = Math.min(sampling.maxTokens, this.contextLength - inputIds.length)
    this.#running++
    try {
      for (let made = 1; made <= limit; made++) {
        await this.#step()
        const id = inputIds[(made - 1) % inputIds.length]!
        if (prompt.startsWith('FAIL') && made === 3) throw new EchoError('SY_ECHO_BROKE')
        if (prompt.startsWith('BUG') && made === 3) throw new TypeError('undefined is not a function')
        const reason = signal?.aborted ? 'abort' : made === limit ? 'length' : null
        const bytes = id >= FIRST_BYTE ? Uint8Array.of(id - FIRST_BYTE) : new Uint8Array()
        yield {
          text: decoder.decode(bytes, { stream: reason === null }),
          tokenIds: [id],
          finish:
            reason === null
              ? null
              : {
                  reason,
                  usage: { promptTokens: inputIds.length, completionTokens: made, cachedTokens: 0 },
                  timings: { queueMs: 0, firstTokenMs: 0, totalMs: 0 },
                },
        }
        if (reason !== null) return
      }
    } finally {
      this.#running--
    }
  }

  state(): readonly DpRankState[] {
    return [
      {
        dpRank: 0,
        running: this.#running,
        waiting: 0,
        usedTokens: 0,
        totalTokens: 1024,
        steps: this.#steps,
        prefilledTokens: 0,
        cachedTokens: 0,
        retractions: 0,
        dispatchSteps: { none: 0, normal: 0, low_latency: 0 },
        voteWaitMs: 0,
        attentionPairs: 0,
      },
    ]
  }

  info(): Readonly<Record<string, unknown>> {
    return this.#info
  }

  async close(): Promise<void> {
    this.closed = true
  }

  async #step(): Promise<void> {
    this.#steps++
    await new Promise<void>(resolve => (this.#stepMs > 0 ? setTimeout(resolve, this.#stepMs) : setImmediate(resolve)))
  }
}
