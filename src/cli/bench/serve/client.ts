// One request to an OpenAI endpoint, timed. Reads the stream as bytes and looks at little more than it must, so that the
// measured server, not this client, is the limit.
import { type ClientRequest, Agent as HttpAgent, request as httpRequest, type IncomingMessage } from 'node:http'
import { Agent as HttpsAgent, request as httpsRequest } from 'node:https'
import type { BenchPrompt } from './datasets.js'

export interface Target {
  /** Without a slash at the end: http://127.0.0.1:30000 */
  readonly baseUrl: string
  readonly endpoint: string
  readonly backend: 'openai' | 'openai-chat'
  readonly model: string
  readonly apiKey: string | null
  readonly ignoreEos: boolean
  readonly temperature: number
  readonly stream: boolean
  readonly timeoutMs: number
}

/** Times in milliseconds on the caller's clock. */
export interface Sample {
  readonly begun: number
  readonly firstToken: number
  readonly ended: number
  /** Between chunks with text. */
  readonly itl: readonly number[]
  readonly promptTokens: number
  readonly outputTokens: number
  /** What went wrong, or null. */
  readonly error: string | null
}

/** Told of tokens as they come, for the progress line. */
export type OnTokens = (count: number) => void

export class BenchClient {
  readonly #target: Target
  readonly #agent: HttpAgent
  readonly #send: typeof httpRequest
  readonly #url: URL
  readonly #now: () => number

  constructor(target: Target, now: () => number) {
    this.#target = target
    this.#url = new URL(target.baseUrl + target.endpoint)
    const secure = this.#url.protocol === 'https:'
    const options = { keepAlive: true, maxSockets: Number.POSITIVE_INFINITY, scheduling: 'lifo' } as const
    this.#agent = secure ? new HttpsAgent(options) : new HttpAgent(options)
    this.#send = secure ? httpsRequest : httpRequest
    this.#now = now
  }

  /** Never rejects: a failure is a sample. */
  run(prompt: BenchPrompt, onTokens: OnTokens, signal: AbortSignal): Promise<Sample> {
    const { apiKey, timeoutMs } = this.#target
    const body = JSON.stringify(this.#body(prompt))
    return new Promise(resolve => {
      const state = new Reading(this.#now, onTokens)
      let settled = false
      const settle = (error: string | null): void => {
        if (settled) return
        settled = true
        clearTimeout(timer)
        signal.removeEventListener('abort', stop)
        resolve(state.sample(error))
        if (error !== null) request.destroy()
      }
      const request: ClientRequest = this.#send(
        this.#url,
        {
          method: 'POST',
          agent: this.#agent,
          headers: {
            'content-type': 'application/json',
            'content-length': Buffer.byteLength(body),
            ...(apiKey === null ? {} : { authorization: `Bearer ${apiKey}` }),
          },
        },
        response => this.#read(response, state, settle),
      )
      const timer = setTimeout(() => settle(`no end within ${timeoutMs / 1000} s`), timeoutMs)
      const stop = () => settle('stopped')
      if (signal.aborted) stop()
      else signal.addEventListener('abort', stop, { once: true })
      request.on('error', (error: Error) => settle(error.message))
      request.end(body)
    })
  }

  #body({ prompt, outputTokens }: BenchPrompt): Readonly<Record<string, unknown>> {
    const { model, backend, ignoreEos, temperature, stream } = this.#target
    return {
      model,
      ...(backend === 'openai-chat' ? { messages: [{ role: 'user', content: prompt }] } : { prompt }),
      max_tokens: outputTokens,
      temperature,
      ...(ignoreEos ? { ignore_eos: true } : {}),
      stream,
      ...(stream ? { stream_options: { include_usage: true } } : {}),
    }
  }

  #read(response: IncomingMessage, state: Reading, settle: (error: string | null) => void): void {
    response.setEncoding('utf8')
    const streamed = this.#target.stream && response.statusCode === 200
    let whole = ''
    response.on('data', (text: string) => {
      if (!streamed) whole += text
      else {
        const error = state.push(text)
        if (error !== null) settle(error)
      }
    })
    response.on('error', (error: Error) => settle(error.message))
    response.on('aborted', () => settle('the connection was closed'))
    response.on('end', () => {
      if (streamed) settle(state.done ? null : 'the stream ended without [DONE]')
      else settle(state.whole(response.statusCode ?? 0, whole))
    })
  }

  close(): void {
    this.#agent.destroy()
  }
}

/** Reads one answer. */
class Reading {
  readonly #now: () => number
  readonly #onTokens: OnTokens
  readonly #begun: number
  #first = 0
  #last = 0
  readonly #itl: number[] = []
  #rest = ''
  #chunks = 0
  #usage: { prompt_tokens?: number; completion_tokens?: number } | null = null
  done = false

  constructor(now: () => number, onTokens: OnTokens) {
    this.#now = now
    this.#onTokens = onTokens
    this.#begun = now()
  }

  /** Some text of the stream. @returns an error the server sent */
  push(text: string): string | null {
    const now = this.#now()
    const parts = (this.#rest + text).split('\n\n')
    this.#rest = parts.pop()!
    let fresh = 0
    for (const part of parts) {
      if (!part.startsWith('data:')) continue
      const data = part.slice(part.charCodeAt(5) === 32 ? 6 : 5)
      if (data === '[DONE]') {
        this.done = true
        continue
      }
      const chunk = JSON.parse(data) as Chunk
      if (chunk.error) return chunk.error.message ?? 'an error without a message'
      if (chunk.usage) this.#usage = chunk.usage
      const choice = chunk.choices?.[0]
      if (choice === undefined || !(choice.text || choice.delta?.content)) continue
      fresh++
    }
    if (fresh > 0) this.#tokens(fresh, now)
    return null
  }

  /** An answer in one piece. @returns what is wrong with it */
  whole(status: number, text: string): string | null {
    let body: Chunk
    try {
      body = JSON.parse(text) as Chunk
    } catch {
      return `status ${status}, and not JSON`
    }
    if (status !== 200) return `status ${status}: ${body.error?.message ?? text.slice(0, 200)}`
    this.#usage = body.usage ?? null
    this.#tokens(body.usage?.completion_tokens ?? 1, this.#now())
    return null
  }

  #tokens(count: number, now: number): void {
    if (this.#first === 0) this.#first = now
    else this.#itl.push(now - this.#last)
    // Chunks that came in one piece came at one time.
    for (let i = 1; i < count && this.#chunks > 0; i++) this.#itl.push(0)
    this.#last = now
    this.#chunks += count
    this.#onTokens(count)
  }

  sample(error: string | null): Sample {
    const now = this.#now()
    return {
      begun: this.#begun,
      firstToken: this.#first || now,
      ended: error === null && this.#last > 0 ? this.#last : now,
      itl: this.#itl,
      promptTokens: this.#usage?.prompt_tokens ?? 0,
      outputTokens: this.#usage?.completion_tokens ?? this.#chunks,
      error: error ?? (this.#chunks === 0 ? 'no token came' : null),
    }
  }
}

interface Chunk {
  readonly choices?: readonly { readonly text?: string; readonly delta?: { readonly content?: string } }[]
  readonly usage?: { readonly prompt_tokens?: number; readonly completion_tokens?: number } | null
  readonly error?: { readonly message?: string }
}
