// The ways a step can run (how DP rows are padded, how tokens reach their experts), and which one a plan means.
import type { EngineFlags } from '../config/flags.js'
import type { ProgramVariant } from '../models/index.js'
import type { ParallelSizes } from '../parallel/index.js'
import type { StepPlan } from '../scheduler/index.js'

/**
 * In a fixed order: the index names a rank's program. Over one DP rank both paddings are the same program; ranks with their own
 * experts gather nothing, so they pad nothing.
 */
export function variantsOf(
  flags: EngineFlags,
  sizes: ParallelSizes,
  hasExperts: boolean,
  ownExperts = false,
): ProgramVariant[] {
  const both = ownExperts ? (['SUM_LEN'] as const) : (['MAX_LEN', 'SUM_LEN'] as const)
  const paddings = sizes.attnDp === 1 ? (['MAX_LEN'] as const) : both
  const dispatches = dispatchesOf(flags, hasExperts)
  return dispatches.flatMap(dispatch => paddings.map(padding => ({ padding, dispatch })))
}

function dispatchesOf({ moeA2aBackend, deepepMode }: EngineFlags, hasExperts: boolean): ProgramVariant['dispatch'][] {
  if (moeA2aBackend === 'none' || !hasExperts) return ['none']
  return deepepMode === 'auto' ? ['normal', 'low_latency'] : [deepepMode]
}

export function variantOf(variants: readonly ProgramVariant[], plan: Pick<StepPlan, 'dpPadding' | 'dispatch'>): number {
  const exact = variants.findIndex(v => v.dispatch === plan.dispatch && v.padding === plan.dpPadding)
  return exact >= 0 ? exact : variants.findIndex(v => v.dispatch === plan.dispatch)
}
