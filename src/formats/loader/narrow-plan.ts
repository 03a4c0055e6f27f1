// Weights that a plan asks for in f32 (routers) and that the checkpoint holds in bf16 lose nothing when they stay bf16. On devices
// whose products want both operands in one type that is also the faster form.
import type { WeightPlan } from '../weight-spec.js'

/** The plan with such matrices in the run's own precision, which must be bf16. @param isBf16 whether a tensor is stored as BF16 */
export function narrowPlan(plan: WeightPlan, isBf16: (tensor: string) => boolean): WeightPlan {
  const weights = plan.weights.map(weight => {
    if (weight.form !== 'matrix' || weight.precision !== 'f32') return weight
    const exact = weight.pieces.every(stack => stack.every(piece => isBf16(piece.tensor)))
    return exact ? { ...weight, precision: 'model' as const } : weight
  })
  return { ...plan, weights }
}
