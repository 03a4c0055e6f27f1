// switchyard-moe as a library: `import { startEngine, engineFlags } from 'switchyard-moe'`.

export { SwitchyardError } from './config/errors.js'
export { type EngineFlags, engineFlags } from './config/flags.js'
export {
  type DpRankState,
  Engine,
  EngineError,
  type EngineHooks,
  explainModel,
  type FinishReason,
  type GenerationEngine,
  type GenerationEvent,
  type GenerationRequest,
  GREEDY,
  type OpenRequest,
  RequestError,
  type SamplingParams,
  startEngine,
} from './engine/index.js'
