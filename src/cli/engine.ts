// How commands get an engine: loaded only when a command needs one, with its progress on stderr.
import type { EngineFlags } from '../config/flags.js'
import type { EngineHooks, GenerationEngine } from '../engine/index.js'
import type { CliIo } from './io.js'
import { progressWriter } from './progress.js'

/** Starts whatever can serve requests. Tests pass an engine without a model. */
export type StartEngine<E extends GenerationEngine> = (flags: EngineFlags, hooks: EngineHooks) => Promise<E>

/** The engine's code, read when first needed: `--help` must not wait for it. */
export const engineModule = () => import('../engine/index.js')

/** Starts an engine with a progress bar. The caller closes it. */
export async function startWithProgress<E extends GenerationEngine>(
  io: CliIo,
  start: StartEngine<E>,
  flags: EngineFlags,
): Promise<E> {
  const progress = progressWriter(io)
  try {
    return await start(flags, { onProgress: p => progress.update(p), onNotice: text => progress.notice(text) })
  } finally {
    progress.finish()
  }
}
