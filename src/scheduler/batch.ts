// The local batch of a step: which rows of which requests this attention-DP rank computes. Plain data.
import type { RequestState } from './request-state.js'

/** Forward modes with SGLang's numbers (model_executor/forward_batch_info.py). */
export const FORWARD_MODE = { extend: 1, decode: 2, mixed: 3, idle: 4 } as const
export type ForwardMode = keyof typeof FORWARD_MODE

/** Tokens [from, from + count) of one request. */
export interface BatchSlice {
  readonly state: RequestState
  readonly from: number
  readonly count: number
  /** The last row is sampled: it is the newest token of the request. */
  readonly sample: boolean
  /** All rows give logits to the caller. */
  readonly wantLogits: boolean
  /** Prompt tokens (or tokens computed again), not the one drawn last. */
  readonly extend: boolean
}

export interface LocalBatch {
  readonly mode: ForwardMode
  readonly slices: readonly BatchSlice[]
  /** Rows of all slices. */
  readonly tokens: number
  /** Rows that go through the output head. */
  readonly logitRows: number
  /** Causal (query, key) pairs: what attention has to do. */
  readonly attentionPairs: number
  /** All requests are probes of /health_generate. */
  readonly healthCheck: boolean
}

export const IDLE_BATCH: LocalBatch = {
  mode: 'idle',
  slices: [],
  tokens: 0,
  logitRows: 0,
  attentionPairs: 0,
  healthCheck: false,
}

export function makeBatch(slices: readonly BatchSlice[]): LocalBatch {
  if (slices.length === 0) return IDLE_BATCH
  let [tokens, logitRows, attentionPairs, extends_] = [0, 0, 0, 0]
  for (const s of slices) {
    tokens += s.count
    logitRows += s.wantLogits ? s.count : s.sample ? 1 : 0
    attentionPairs += s.count * s.from + (s.count * (s.count + 1)) / 2
    if (s.extend) extends_++
  }
  const mode = extends_ === 0 ? 'decode' : extends_ === slices.length ? 'extend' : 'mixed'
  const healthCheck = slices.every(s => s.state.request.isHealthCheck)
  return { mode, slices, tokens, logitRows, attentionPairs, healthCheck }
}
