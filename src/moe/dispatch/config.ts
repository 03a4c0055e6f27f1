// Flags → the ExpertBuffer of an engine, and what the flags get wrong. Wire formats are a policy: `auto` is what costs no
// accuracy on the device, f32 on `cpu`. Results of experts come back in bf16 when tokens went out in a shorter format than
// f32, as DeepEP does.
import type { ExpertBufferConfig, WireDtype } from '../../comm/index.js'
import { readDeepepConfig } from './deepep-config.js'
import { DispatchError } from './errors.js'

export interface DispatchFlags {
  readonly moeA2aBackend: 'none' | 'deepep'
  readonly deepepMode: 'auto' | 'normal' | 'low_latency'
  readonly deepepDispatcherOutputDtype: 'auto' | 'f32' | 'bf16' | 'fp8' | 'int8'
  readonly deepepNumMaxDispatchTokensPerRank: number
  /** DeepEP's tuning as JSON, or the path of a JSON file; see deepep-config.ts. */
  readonly deepepConfig: string | null
}

export interface DispatchSizes {
  readonly hidden: number
  readonly topK: number
  /** Physical experts of each rank. */
  readonly expertsOfRank: readonly number[]
  readonly nodeOfRank: readonly number[]
  /** Rows a rank brings to one dispatch at most. */
  readonly maxTokens: number
  /** How rows travel when the flags leave it open. Default: f32. */
  readonly wire?: 'f32' | 'bf16'
  /** Results alive at once. Default: 1. */
  readonly results?: 1 | 2
}

/** @throws DispatchError SY_DISPATCH_BAD_CONFIG */
export function expertBufferConfig(flags: DispatchFlags, sizes: DispatchSizes): ExpertBufferConfig {
  const chosen = flags.deepepDispatcherOutputDtype
  const dispatchWire: WireDtype = chosen === 'auto' ? (sizes.wire ?? 'f32') : chosen
  const combineWire: WireDtype = dispatchWire === 'f32' ? 'f32' : 'bf16'
  const { hidden, topK, expertsOfRank, nodeOfRank, maxTokens } = sizes
  // Counts are known before rows are sent, so they can go straight to their place: rings only when sizes are asked for.
  const transit = flags.deepepConfig === null ? ('direct' as const) : readDeepepConfig(flags.deepepConfig)
  return {
    hidden,
    topK,
    expertsOfMember: expertsOfRank,
    nodeOfMember: nodeOfRank,
    results: sizes.results ?? 1,
    ...(flags.deepepMode === 'low_latency' ? {} : { normal: { maxTokens, dispatchWire, combineWire, transit } }),
    ...(flags.deepepMode === 'normal'
      ? {}
      : {
          lowLatency: {
            slots: Math.min(flags.deepepNumMaxDispatchTokensPerRank, maxTokens),
            dispatchWire,
            combineWire,
            reduce: 'sender' as const,
          },
        }),
  }
}

/** What decides how many tokens a rank may bring to one step. */
export interface StepTokens {
  readonly chunkedPrefillSize: number
  readonly maxRunningRequests: number
  readonly attnTp: number
}

/**
 * Without another mode to fall back on, every step must fit the slots.
 * @throws DispatchError SY_DISPATCH_TOO_FEW_SLOTS with the numbers that work
 */
export function checkSlots(flags: DispatchFlags, { chunkedPrefillSize, maxRunningRequests, attnTp }: StepTokens): void {
  const slots = flags.deepepNumMaxDispatchTokensPerRank
  const tokens = Math.ceil((chunkedPrefillSize + maxRunningRequests) / attnTp)
  if (flags.moeA2aBackend === 'none' || flags.deepepMode !== 'low_latency' || tokens <= slots) return
  const chunk = slots * attnTp - maxRunningRequests
  const smaller =
    chunk >= 1
      ? `--chunked-prefill-size ${chunk} or less`
      : `--max-running-requests ${Math.max(1, Math.floor((slots * attnTp) / 2))} with an equal --chunked-prefill-size`
  throw new DispatchError('SY_DISPATCH_TOO_FEW_SLOTS', {
    tokens,
    slots,
    arithmetic: `(--chunked-prefill-size ${chunkedPrefillSize} + --max-running-requests ${maxRunningRequests}) / attention-TP ${attnTp}`,
    remedy: `Use --deepep-num-max-dispatch-tokens-per-rank ${tokens} or more, ${smaller}, or --deepep-mode auto.`,
  })
}

/** Flags that were given and have no effect, in words. */
export function dispatchNotes(flags: DispatchFlags, hasExperts: boolean): string[] {
  if (flags.moeA2aBackend === 'deepep') {
    if (!hasExperts) return ['--moe-a2a-backend deepep has no effect: the model has no routed experts']
    if (flags.deepepMode === 'low_latency' && flags.deepepConfig !== null)
      return ['--deepep-config has no effect with --deepep-mode low_latency: it sizes the rings of normal dispatch']
    return []
  }
  const given = [
    flags.deepepMode === 'auto' ? null : `--deepep-mode ${flags.deepepMode}`,
    flags.deepepDispatcherOutputDtype === 'auto'
      ? null
      : `--deepep-dispatcher-output-dtype ${flags.deepepDispatcherOutputDtype}`,
    flags.deepepConfig === null ? null : '--deepep-config',
  ].filter(name => name !== null)
  return given.map(name => `${name} has no effect without --moe-a2a-backend deepep`)
}
