// SGLang's control endpoints: /flush_cache, /abort_request, /pause_generation, /continue_generation. An engine that lacks
// one of them says so.
import type { GenerationEngine } from '../../engine/request.js'
import { HttpError } from '../errors.js'

/** What an engine may offer beside generation. */
export interface EngineControls {
  abort?(id: string): boolean
  abortAll?(): number
  readonly paused?: boolean
  pause?(): void
  resume?(): void
  flushCache?(): Promise<number>
}

const controls = (engine: GenerationEngine): EngineControls => engine as EngineControls

const lacking = (path: string): HttpError => new HttpError('SY_HTTP_NOT_OFFERED', { path })

/** SGLang answers in text. */
export async function flushCache(engine: GenerationEngine): Promise<Response> {
  const pages = await controls(engine).flushCache?.()
  if (pages === undefined) throw lacking('/flush_cache')
  return Response.json({ success: true, freed_pages: pages })
}

/** Body {rid} or {abort_all: true}. An id that does not run is no error: it may just have ended. */
export function abortRequest(engine: GenerationEngine, body: Readonly<Record<string, unknown>>): Response {
  const { rid, abort_all: all } = body
  const control = controls(engine)
  if (all === true) {
    if (!control.abortAll) throw lacking('/abort_request')
    return Response.json({ success: true, aborted: control.abortAll() })
  }
  if (typeof rid !== 'string' || rid === '') {
    throw new HttpError('SY_HTTP_INVALID_FIELD', {
      param: 'rid',
      problem: 'expected the id of a request, or abort_all',
    })
  }
  if (!control.abort) throw lacking('/abort_request')
  return Response.json({ success: true, aborted: control.abort(rid) ? 1 : 0 })
}

export function pauseGeneration(engine: GenerationEngine): Response {
  const control = controls(engine)
  if (!control.pause) throw lacking('/pause_generation')
  control.pause()
  return Response.json({ status: 'ok', message: 'generation stands still until /continue_generation' })
}

export function continueGeneration(engine: GenerationEngine): Response {
  const control = controls(engine)
  if (!control.resume) throw lacking('/continue_generation')
  control.resume()
  return Response.json({ status: 'ok', message: 'generation goes on' })
}
