// Layouts, modes and ways of an engine with an all-to-all, and what must be true of a run in each. Plain data.
import type { OneThreadEngine } from '../../src/engine/one-thread.js'
import type { RankRequest } from '../../src/scheduler/index.js'
import { drawing, type GivenFlags } from './harness.js'
import { redundantFor } from './layouts.js'

export interface DispatchLayoutCase {
  readonly name: string
  /** Flags for a model with this many routed experts. */
  readonly flags: (experts: number) => GivenFlags
}

/** ep is always tp: an all-to-all spans all ranks. */
const over = (name: string, tpSize: number, attnDpSize: number): DispatchLayoutCase => ({
  name,
  flags: () => ({ moeA2aBackend: 'deepep', tpSize, attnDpSize, epSize: tpSize }),
})

export const DISPATCH_LAYOUTS: readonly DispatchLayoutCase[] = [
  over('2 ranks, attn_dp 2', 2, 2),
  over('2 ranks, attn_tp 2', 2, 1),
  over('4 ranks, attn_dp 2, attn_tp 2', 4, 2),
  over('8 ranks, attn_dp 4, attn_tp 2', 8, 4),
  {
    name: '3 ranks, attn_dp 3, redundant experts',
    flags: experts => ({
      moeA2aBackend: 'deepep',
      tpSize: 3,
      attnDpSize: 3,
      epSize: 3,
      epNumRedundantExperts: redundantFor(experts, 3),
    }),
  },
]

/** Rings that hold a fraction of what a step sends. */
export const SMALL_RINGS = JSON.stringify({
  normal_dispatch: { num_sms: 4, num_max_nvl_chunked_send_tokens: 2, num_max_nvl_chunked_recv_tokens: 5 },
})

/** Requests of these tests that may run at once, and tokens of a chunk: small, so that slots and buffers are. */
export const ROOM: GivenFlags = { maxRunningRequests: 12, maxTotalTokens: 12 * 64, chunkedPrefillSize: 40 }

export interface DispatchWay {
  readonly name: string
  readonly flags: GivenFlags
  /** Attention-DP rank of request i. */
  readonly route: (i: number, dpRanks: number) => number
  /** Modes that must have run, and no others. */
  readonly ran: readonly ('normal' | 'low_latency')[]
}

const spread: DispatchWay['route'] = (i, dpRanks) => i % dpRanks
/** All requests on the last rank: the others run with 0 rows throughout. */
const onLast: DispatchWay['route'] = (_, dpRanks) => dpRanks - 1

export const DISPATCH_WAYS: readonly DispatchWay[] = [
  { name: 'normal', flags: { deepepMode: 'normal' }, route: spread, ran: ['normal'] },
  {
    name: 'normal, chunks of 3, small rings, idle ranks',
    flags: { deepepMode: 'normal', chunkedPrefillSize: 3, deepepConfig: SMALL_RINGS },
    route: onLast,
    ran: ['normal'],
  },
  {
    name: 'low_latency, whole prompts',
    flags: { deepepMode: 'low_latency', deepepNumMaxDispatchTokensPerRank: 52 },
    route: spread,
    ran: ['low_latency'],
  },
  {
    name: 'low_latency, chunks of 3, idle ranks',
    flags: { deepepMode: 'low_latency', chunkedPrefillSize: 3, deepepNumMaxDispatchTokensPerRank: 15 },
    route: onLast,
    ran: ['low_latency'],
  },
  {
    name: 'auto, chunks of 3, few slots, rings',
    flags: {
      deepepMode: 'auto',
      chunkedPrefillSize: 3,
      deepepNumMaxDispatchTokensPerRank: 2,
      deepepConfig: SMALL_RINGS,
    },
    route: spread,
    ran: ['normal', 'low_latency'],
  },
]

/** Decodes alone at the end, so that `auto` has steps for both modes whatever the layout. */
export const lateDecoder = (): RankRequest => drawing('late', [5, 9, 2], 24)

export const modesThatRan = (engine: OneThreadEngine): string[] =>
  Object.entries(engine.lastDispatchSteps)
    .filter(([, steps]) => steps > 0)
    .map(([mode]) => mode)
