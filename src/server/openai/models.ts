// GET /v1/models and /v1/models/{id}: the one model that is served.
import type { GenerationEngine } from '../../engine/request.js'
import { HttpError } from '../errors.js'

const modelBody = (engine: GenerationEngine, created: number) => ({
  id: engine.modelName,
  object: 'model',
  created,
  owned_by: 'switchyard',
  max_model_len: engine.contextLength,
})

/** @param created seconds since 1970 at which the server started */
export const listModels = (engine: GenerationEngine, created: number): Response =>
  Response.json({ object: 'list', data: [modelBody(engine, created)] })

/** @throws HttpError 404 */
export function oneModel(engine: GenerationEngine, id: string, created: number): Response {
  checkModel(engine, id)
  return Response.json(modelBody(engine, created))
}

/** A request may leave the model out; it may not name another one. @throws HttpError 404 */
export function checkModel(engine: GenerationEngine, model: string | undefined): void {
  if (model === undefined || model === engine.modelName) return
  throw new HttpError('SY_HTTP_UNKNOWN_MODEL', { model: model.slice(0, 200), served: engine.modelName, param: 'model' })
}
