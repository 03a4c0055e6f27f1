// Encodes long texts in a thread of its own: 20,000 tokens take the main thread 50 ms and more, in which no stream would
// move. The thread is started by the first long text and loads its own tokenizer. Texts are encoded in order.
import { existsSync } from 'node:fs'
import { fileURLToPath } from 'node:url'
import { Worker } from 'node:worker_threads'
import { SwitchyardError } from '../config/errors.js'
import { EngineError } from './errors.js'

export interface EncodeTask {
  readonly id: number
  readonly text: string
  readonly addSpecialTokens: boolean
}

export type EncodeAnswer =
  | { readonly id: number; readonly ids: Int32Array }
  | {
      readonly id: number
      readonly failure: {
        readonly code: string
        readonly status: number
        readonly message: string
        readonly remedy: string
      }
    }

interface Waiter {
  resolve(ids: number[]): void
  reject(error: Error): void
}

function workerFile(): URL {
  const compiled = import.meta.url.endsWith('.ts') ? '../../dist/engine/encode-worker.js' : './encode-worker.js'
  const url = new URL(compiled, import.meta.url)
  if (!existsSync(fileURLToPath(url))) throw new EngineError('SY_ENGINE_NOT_BUILT', { file: fileURLToPath(url) })
  return url
}

export class EncodeAside {
  readonly #directory: string
  readonly #waiting = new Map<number, Waiter>()
  #worker: Worker | null = null
  #counter = 0
  #closed = false

  /** @param directory of the model, where its tokenizer is */
  constructor(directory: string) {
    this.#directory = directory
  }

  encode(text: string, { addSpecialTokens }: { readonly addSpecialTokens: boolean }): Promise<number[]> {
    if (this.#closed) return Promise.reject(new EngineError('SY_ENGINE_CLOSING'))
    return new Promise((resolve, reject) => {
      const worker = this.#start()
      const id = this.#counter++
      this.#waiting.set(id, { resolve, reject })
      worker.ref()
      worker.postMessage({ id, text, addSpecialTokens } satisfies EncodeTask)
    })
  }

  #start(): Worker {
    if (this.#worker) return this.#worker
    const worker = new Worker(workerFile(), { workerData: { directory: this.#directory }, name: 'tokenizer' })
    worker.on('message', (answer: EncodeAnswer) => {
      const waiter = this.#waiting.get(answer.id)
      this.#waiting.delete(answer.id)
      if (this.#waiting.size === 0) worker.unref()
      if ('ids' in answer) waiter?.resolve(Array.from(answer.ids))
      else waiter?.reject(new SwitchyardError(answer.failure.code, answer.failure, {}))
    })
    // A thread that dies takes its texts along; the next long text starts another.
    const lost = (cause: Error) => {
      if (this.#worker === worker) this.#worker = null
      this.#rejectAll(cause)
    }
    worker.on('error', lost)
    worker.on('exit', code => lost(new Error(`the tokenizer thread ended with code ${code}`)))
    this.#worker = worker
    return worker
  }

  #rejectAll(error: Error): void {
    const waiters = [...this.#waiting.values()]
    this.#waiting.clear()
    for (const waiter of waiters) waiter.reject(error)
  }

  async close(): Promise<void> {
    this.#closed = true
    const worker = this.#worker
    this.#worker = null
    this.#rejectAll(new EngineError('SY_ENGINE_CLOSING'))
    await worker?.terminate()
  }
}
