// `switchyard serve` as a process of its own, for tests of how it dies: its output, its answers, its exit.
// Uses the compiled program; the process is killed when the test ends, whatever happened.
import { spawn } from 'node:child_process'
import { fileURLToPath } from 'node:url'

const BINARY = fileURLToPath(new URL('../bin/switchyard.js', import.meta.url))

export interface Exit {
  readonly code: number | null
  readonly signal: NodeJS.Signals | null
  /** performance.now() of it. */
  readonly at: number
}

/** How one HTTP request ended: its status, and the error of the body or of the stream's last event. */
export interface Answer {
  readonly status: number
  readonly error: { readonly code: string; readonly message: string } | null
  readonly text: string
}

export class ServeProcess implements AsyncDisposable {
  stdout = ''
  stderr = ''
  readonly exit: Promise<Exit>
  readonly #child: ReturnType<typeof spawn>
  #wake: () => void = () => {}

  constructor(args: readonly string[]) {
    this.#child = spawn(process.execPath, [BINARY, 'serve', ...args, '--port', '0', '--log-level', 'error'], {
      stdio: ['ignore', 'pipe', 'pipe'],
      env: { ...process.env, NO_COLOR: '1' },
    })
    this.#child.stdout!.on('data', (data: Buffer) => {
      this.stdout += data.toString()
      this.#wake()
    })
    this.#child.stderr!.on('data', (data: Buffer) => {
      this.stderr += data.toString()
    })
    this.exit = new Promise(resolve => {
      // `close`: after the last byte of its output.
      this.#child.once('close', (code, signal) => {
        resolve({ code, signal, at: performance.now() })
        this.#wake()
      })
    })
  }

  /** Its URL once it serves, or null when it has ended before. */
  async url(): Promise<string | null> {
    for (;;) {
      const url = /(http:\S+)\/v1/.exec(this.stdout)?.[1]
      if (url !== undefined && this.stdout.includes('Ctrl-C')) return url
      if (this.#child.exitCode !== null || this.#child.signalCode !== null) return null
      await new Promise<void>(resolve => {
        this.#wake = resolve
      })
    }
  }

  get pid(): number {
    return this.#child.pid!
  }

  signal(name: NodeJS.Signals): void {
    this.#child.kill(name)
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#child.kill('SIGKILL')
    await this.exit
  }
}

/** Asks for a completion. `onChunk` hears of every piece of a stream. */
export async function complete(
  url: string,
  body: Readonly<Record<string, unknown>>,
  onChunk: () => void = () => {},
): Promise<Answer> {
  const response = await fetch(`${url}/v1/completions`, {
    method: 'POST',
    headers: { 'content-type': 'application/json' },
    body: JSON.stringify(body),
  })
  let text = ''
  const decoder = new TextDecoder()
  for await (const chunk of response.body!) {
    text += decoder.decode(chunk as Uint8Array, { stream: true })
    onChunk()
  }
  const events = body['stream'] === true && response.status === 200 ? text.split('\n\n').filter(e => e !== '') : [text]
  const last = (events.at(-1) ?? '').replace(/^data: /, '')
  const parsed = last.startsWith('{') ? (JSON.parse(last) as { error?: { code: string; message: string } }) : {}
  return { status: response.status, error: parsed.error ?? null, text }
}

/** Asks /health again and again until it cannot be reached. @returns the statuses, without repetitions in a row */
export async function watchHealth(url: string): Promise<number[]> {
  const statuses: number[] = []
  for (;;) {
    try {
      const response = await fetch(`${url}/health`)
      await response.arrayBuffer()
      if (statuses.at(-1) !== response.status) statuses.push(response.status)
    } catch {
      return statuses
    }
    await new Promise(resolve => setTimeout(resolve, 20))
  }
}
