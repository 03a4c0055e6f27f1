// Health and introspection, with SGLang's paths and names: /health, /health_generate, /server_info, /get_model_info.

import type { ServerFlags } from '../../config/flags.js'
import { type GenerationEngine, GREEDY } from '../../engine/request.js'
import { HttpError } from '../errors.js'
import type { Lifecycle, Ticket } from '../lifecycle.js'
import { runChoices } from '../openai/choices.js'
import type { EngineControls } from './control.js'

/** 200 when requests are taken, 503 while loading, draining or failed. */
export function health(lifecycle: Lifecycle): Response {
  const status = lifecycle.phase === 'ready' ? 200 : 503
  return Response.json({ status: lifecycle.phase }, { status })
}

const HEALTH_SECONDS = 20

/**
 * Makes one token, so that a stuck engine is found. A paused engine makes none because somebody asked for it, so it is
 * no case for whoever restarts what is unhealthy: 200 at once, with `paused` (SGLang waits and answers 503).
 * @throws HttpError 503
 */
export async function healthGenerate(ticket: Ticket): Promise<Response> {
  const late = setTimeout(
    () => ticket.abort(new HttpError('SY_HTTP_NO_TOKEN', { seconds: HEALTH_SECONDS })),
    1000 * HEALTH_SECONDS,
  )
  try {
    if ((ticket.engine as EngineControls).paused === true) return Response.json({ status: 'paused' })
    const request = { inputIds: [0], sampling: { ...GREEDY, maxTokens: 1, ignoreEos: true }, isHealthCheck: true }
    for await (const batch of runChoices(ticket, [request])) {
      if (batch.some(({ event }) => event.finish !== null)) break
    }
    return Response.json({ status: 'ready' })
  } finally {
    clearTimeout(late)
    ticket.end()
  }
}

/** Everything about the run: flags (without the key), facts of the engine, state of every DP rank. */
export function serverInfo(lifecycle: Lifecycle, flags: ServerFlags, version: string): Response {
  const { engine } = lifecycle
  return Response.json({
    version,
    status: lifecycle.phase,
    requests_in_flight: lifecycle.inFlight,
    server: { ...flags, apiKey: flags.apiKey === null ? null : '(set)' },
    engine: plain(engine.info()),
    internal_states: engine.state(),
  })
}

export function modelInfo(engine: GenerationEngine): Response {
  const info = engine.info()
  return Response.json({
    model_path: plain(info['modelPath'] ?? null),
    served_model_name: engine.modelName,
    is_generation: true,
    context_length: engine.contextLength,
    vocab_size: engine.vocabSize,
    has_tokenizer: engine.tokenizer !== null,
    has_chat_template: engine.tokenizer?.hasChatTemplate ?? false,
  })
}

/** JSON knows no bigint; seeds are 64-bit. */
const plain = (value: unknown): unknown =>
  JSON.parse(JSON.stringify(value, (_key, v: unknown) => (typeof v === 'bigint' ? v.toString() : v)))
