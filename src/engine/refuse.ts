// What runs on the CPU and not yet on an accelerator, refused by name before anything is loaded.
import { ConfigError } from '../config/config-errors.js'
import type { EngineFlags } from '../config/flags.js'
import type { ModelSpec } from '../formats/model-spec.js'
import type { ResolvedParallel } from '../parallel/index.js'
import { EngineError } from './errors.js'

/** Their kernels (attention sinks with clamped activations; GLM's partial rotation) are not checked there yet. */
const ARCHITECTURES_REFUSED: readonly string[] = ['gpt_oss', 'glm4_moe']

/** @throws ConfigError SY_CONFIG_NOT_SUPPORTED, EngineError SY_ENGINE_ARCHITECTURE_ON_DEVICE */
export function refuseOnAccelerator(
  device: string,
  flags: EngineFlags,
  spec: ModelSpec,
  parallel: ResolvedParallel,
): void {
  const { tp } = parallel.sizes
  const refuse = (flag: string, value: string | number, instead: string): never => {
    throw new ConfigError('SY_CONFIG_NOT_SUPPORTED', { flag, value: `${value} with --device ${device}`, instead })
  }
  if (tp > 1) refuseLayout(parallel, flags, spec, refuse)
  else if (flags.moeA2aBackend !== 'none') {
    refuse('--moe-a2a-backend', flags.moeA2aBackend, 'use --moe-a2a-backend none, or --device cpu')
  }
  if (ARCHITECTURES_REFUSED.includes(spec.architecture)) {
    throw new EngineError('SY_ENGINE_ARCHITECTURE_ON_DEVICE', { architecture: spec.architecture, device })
  }
  if (tp === 1) return
  if (spec.layers.every(({ ffn }) => ffn.kind !== 'moe'))
    refuse('--tp-size', tp, `use one rank for a model without routed experts, or --device cpu`)
}

/** Between GPUs there is dispatch and combine and nothing else, so every rank has attention, dense layers and head whole. */
function refuseLayout(
  { sizes, dpLmHead, denseLocal }: ResolvedParallel,
  flags: EngineFlags,
  spec: ModelSpec,
  refuse: (flag: string, value: string | number, instead: string) => never,
): void {
  const { tp, attnDp, ep } = sizes
  const works =
    `use --tp-size ${tp} --attn-dp-size ${tp} --ep-size ${tp} --moe-a2a-backend deepep --enable-dp-lm-head ` +
    '--moe-dense-tp-size 1, or one rank, or --device cpu'
  if (sizes.nodes > 1) refuse('--nnodes', sizes.nodes, 'use GPUs of one machine')
  if (attnDp !== tp || ep !== tp) refuse('--tp-size', `${tp} --attn-dp-size ${attnDp} --ep-size ${ep}`, works)
  if (flags.moeA2aBackend === 'none') refuse('--moe-a2a-backend', 'none and more than one rank', works)
  if (!dpLmHead) refuse('--tp-size', `${tp} without --enable-dp-lm-head`, works)
  const dense = spec.layers.some(({ ffn }) => ffn.kind === 'dense')
  if (dense && !denseLocal) refuse('--tp-size', `${tp} without --moe-dense-tp-size 1`, works)
  const wire = flags.deepepDispatcherOutputDtype
  if (wire !== 'auto')
    refuse('--deepep-dispatcher-output-dtype', wire, 'leave it out: rows travel as they are computed')
  if (flags.deepepConfig !== null) refuse('--deepep-config', 'rings', 'leave it out: rows go straight to their places')
}

/** Ranks would have to draw the same experts for a row wherever it lies. @throws ConfigError */
export function refuseFakeRouting(): never {
  throw new ConfigError('SY_CONFIG_NOT_SUPPORTED', {
    flag: '--ep-dispatch-algorithm',
    value: 'fake with --ep-size above 1',
    instead: 'use --ep-size 1 or --ep-dispatch-algorithm dynamic',
  })
}
