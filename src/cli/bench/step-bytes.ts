// Bytes of weights and KV cache that one decode step of a rank must read, counted from the program itself: what the share of the
// memory bandwidth is measured against. Weights of routed experts count as often as distinct experts are expected under
// even routing; real routing is uneven and touches fewer, so the figure is an upper bound for large batches.

import type { MatrixSpec } from '../../formats/weight-spec.js'
import type { ModelProgram } from '../../models/index.js'

export interface StepBytes {
  readonly weights: number
  readonly kv: number
  readonly total: number
}

/** Bytes of one packed matrix: panels of 16 output rows, k rounded up to even for bf16 (device/ops.ts). */
function matrixBytes(spec: MatrixSpec, dtype: 'f32' | 'bf16'): number {
  const rows = 16 * Math.ceil(spec.n / 16)
  return spec.precision === 'f32' || dtype === 'f32' ? rows * spec.k * 4 : rows * 2 * Math.ceil(spec.k / 2) * 2
}

/** Distinct experts that `tokens` tokens touch when each takes `topK` of `experts` evenly. */
export const expectedExperts = (experts: number, topK: number, tokens: number): number =>
  experts * (1 - (1 - topK / experts) ** tokens)

/**
 * @param batch sequences that decode together, of all ranks: the experts of a rank compute rows of all
 * @param contextTokens mean tokens in the cache of one sequence
 * @param kvBytesPerToken over all layers
 */
export function decodeStepBytes(
  { program, weights }: Pick<ModelProgram, 'program' | 'weights'>,
  dtype: 'f32' | 'bf16',
  batch: number,
  contextTokens: number,
  kvBytesPerToken: number,
  /** Sequences whose cache lies on this rank. */
  ownSequences: number = batch,
): StepBytes {
  const specs = new Map(weights.weights.map(spec => [spec.name, spec]))
  const one = (name: string): number => {
    const spec = specs.get(name)
    return spec?.form === 'matrix' ? matrixBytes(spec, dtype) : 0
  }
  const count = (name: string): number => {
    const spec = specs.get(name)
    return spec?.form === 'matrix' ? spec.pieces.length : 0
  }
  const experts = new Map(
    program.operations.flatMap(op => (op.kind === 'router' ? [[op.layer, op.args.spec.experts]] : [])),
  )
  let total = 0
  for (const op of program.operations) {
    if (op.kind === 'linear' || op.kind === 'head_linear') total += one(op.args.weight) * count(op.args.weight)
    if (op.kind !== 'experts' && op.kind !== 'dispatched_experts') continue
    const { gateUp, down, topK } = op.args
    const local = count(gateUp)
    const all = experts.get(op.layer) ?? local
    total += (local / all) * expectedExperts(all, topK, batch) * (one(gateUp) + one(down))
  }
  const kv = ownSequences * contextTokens * kvBytesPerToken
  return { weights: Math.round(total), kv: Math.round(kv), total: Math.round(total + kv) }
}
