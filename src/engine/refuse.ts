// What runs on the CPU and not yet on an accelerator, refused by name before anything is loaded.
import { ConfigError } from '../config/config-errors.js'
import type { EngineFlags } from '../config/flags.js'
import type { ModelSpec } from '../formats/model-spec.js'
import type { ParallelSizes } from '../parallel/index.js'
import { EngineError } from './errors.js'

/** Their kernels (attention sinks with clamped activations; GLM's partial rotation) are not checked there yet. */
const ARCHITECTURES_REFUSED: readonly string[] = ['gpt_oss', 'glm4_moe']

/** @throws ConfigError SY_CONFIG_NOT_SUPPORTED, EngineError SY_ENGINE_ARCHITECTURE_ON_DEVICE */
export function refuseOnAccelerator(device: string, flags: EngineFlags, spec: ModelSpec, sizes: ParallelSizes): void {
  const refuse = (flag: string, value: string | number, instead: string): never => {
    throw new ConfigError('SY_CONFIG_NOT_SUPPORTED', { flag, value: `${value} with --device ${device}`, instead })
  }
  if (sizes.tp > 1) refuse('--tp-size', sizes.tp, `use one rank with --device ${device}, or --device cpu`)
  if (flags.moeA2aBackend !== 'none') {
    refuse('--moe-a2a-backend', flags.moeA2aBackend, 'use --moe-a2a-backend none, or --device cpu')
  }
  if (ARCHITECTURES_REFUSED.includes(spec.architecture)) {
    throw new EngineError('SY_ENGINE_ARCHITECTURE_ON_DEVICE', { architecture: spec.architecture, device })
  }
}

/** Ranks would have to draw the same experts for a row wherever it lies. @throws ConfigError */
export function refuseFakeRouting(): never {
  throw new ConfigError('SY_CONFIG_NOT_SUPPORTED', {
    flag: '--ep-dispatch-algorithm',
    value: 'fake with --ep-size above 1',
    instead: 'use --ep-size 1 or --ep-dispatch-algorithm dynamic',
  })
}
