// The engine's public face.
import type { EngineFlags } from '../config/flags.js'
import { Engine } from './engine.js'
import type { EngineHooks } from './load-model.js'

export { Engine } from './engine.js'
export { EngineError, RequestError } from './errors.js'
export { type ExplainReport, explainModel } from './explain.js'
export type { EngineHooks } from './load-model.js'
export * from './request.js'
export type { EngineTrace } from './trace.js'

/** Loads a model and starts its ranks. */
export const startEngine = (flags: EngineFlags, hooks: EngineHooks = {}): Promise<Engine> => Engine.start(flags, hooks)
