// A server over an engine that computes nothing, in a thread of its own: what `bench serve --null` measures.
import { existsSync } from 'node:fs'
import { fileURLToPath } from 'node:url'
import { isMainThread, parentPort, Worker, workerData } from 'node:worker_threads'
import { serverFlags } from '../../../config/flags.js'
import { EngineError } from '../../../engine/errors.js'
import { NullEngine, type NullEngineOptions } from '../../../engine/null-engine.js'
import { createLogger, openServer } from '../../../server/index.js'

export interface NullServer extends AsyncDisposable {
  readonly url: string
}

/** Sources (tests) run the compiled worker. */
function workerFile(): URL {
  const url = import.meta.url.endsWith('.ts')
    ? new URL('../../../../dist/cli/bench/serve/null-server.js', import.meta.url)
    : new URL(import.meta.url)
  if (!existsSync(fileURLToPath(url))) throw new EngineError('SY_ENGINE_NOT_BUILT', { file: fileURLToPath(url) })
  return url
}

export async function startNullServer(options: NullEngineOptions = {}): Promise<NullServer> {
  const worker = new Worker(workerFile(), { workerData: { nullServer: options }, name: 'null server' })
  const url = await new Promise<string>((resolve, reject) => {
    worker.once('message', (message: { url: string }) => resolve(message.url))
    worker.once('error', reject)
  })
  return {
    url,
    async [Symbol.asyncDispose]() {
      await worker.terminate()
    },
  }
}

async function serve(options: NullEngineOptions): Promise<void> {
  const server = await openServer(serverFlags({ port: 0, logLevel: 'silent' }), {
    log: createLogger('silent'),
    version: 'null',
  })
  server.attach(new NullEngine(options))
  parentPort!.postMessage({ url: server.url })
}

const mine = (workerData as { nullServer?: NullEngineOptions } | null)?.nullServer
if (!isMainThread && mine !== undefined) await serve(mine)
