// Flags → the ExpertBuffer of an engine. Wire formats are a policy: `auto` is what costs no accuracy on the device, f32 on
// `cpu`. Results of experts come back in bf16 when tokens went out in a shorter format than f32, as DeepEP does.
import type { ExpertBufferConfig, WireDtype } from '../../comm/index.js'

export interface DispatchFlags {
  readonly moeA2aBackend: 'none' | 'deepep'
  readonly deepepMode: 'auto' | 'normal' | 'low_latency'
  readonly deepepDispatcherOutputDtype: 'auto' | 'f32' | 'bf16' | 'fp8' | 'int8'
  readonly deepepNumMaxDispatchTokensPerRank: number
  /** DeepEP's tuning: {"normal_dispatch": {"num_sms", "num_max_nvl_chunked_send_tokens", "num_max_nvl_chunked_recv_tokens"}, …}. */
  readonly deepepConfig: Readonly<Record<string, unknown>> | null
}

export interface DispatchSizes {
  readonly hidden: number
  readonly topK: number
  /** Physical experts of each rank. */
  readonly expertsOfRank: readonly number[]
  readonly nodeOfRank: readonly number[]
  /** Rows a rank brings to one dispatch at most. */
  readonly maxTokens: number
}

export function expertBufferConfig(flags: DispatchFlags, sizes: DispatchSizes): ExpertBufferConfig {
  const chosen = flags.deepepDispatcherOutputDtype
  const dispatchWire: WireDtype = chosen === 'auto' ? 'f32' : chosen
  const combineWire: WireDtype = dispatchWire === 'f32' ? 'f32' : 'bf16'
  const { hidden, topK, expertsOfRank, nodeOfRank, maxTokens } = sizes
  return {
    hidden,
    topK,
    expertsOfMember: expertsOfRank,
    nodeOfMember: nodeOfRank,
    results: 1,
    ...(flags.deepepMode === 'low_latency'
      ? {}
      : { normal: { maxTokens, dispatchWire, combineWire, transit: transitOf(flags) } }),
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

/** Rings only when sizes are asked for; counts are known here, so rows can go straight to their place. */
function transitOf({ deepepConfig }: DispatchFlags) {
  const normal = deepepConfig?.['normal_dispatch'] as Record<string, number> | undefined
  if (!normal) return 'direct' as const
  return {
    channels: Math.max(1, Math.floor((normal['num_sms'] ?? 2) / 2)),
    chunkTokens: normal['num_max_nvl_chunked_send_tokens'] ?? 6,
    ringTokens: normal['num_max_nvl_chunked_recv_tokens'] ?? 256,
  }
}
