// Operations of a prompt, counted from the program: two for each product of a weight and an activation, and of queries, keys
// and values under the causal mask. Norms, rotations and activations are left out.
import type { ModelProgram } from '../../models/index.js'

/** @param streams prompts of `promptTokens` tokens each, of all ranks; one row of each goes through the output head */
export function prefillFlop(
  { program, weights }: Pick<ModelProgram, 'program' | 'weights'>,
  streams: number,
  promptTokens: number,
): number {
  const specs = new Map(weights.weights.map(spec => [spec.name, spec]))
  const elements = (name: string): number => {
    const spec = specs.get(name)
    return spec?.form === 'matrix' ? spec.n * spec.k : 0
  }
  const count = (name: string): number => {
    const spec = specs.get(name)
    return spec?.form === 'matrix' ? spec.pieces.length : 0
  }
  const pairs = (streams * promptTokens * (promptTokens + 1)) / 2
  let flop = 0
  for (const op of program.operations) {
    const rows = op.rows === 'logitRows' || op.rows === 'gatheredLogits' ? streams : streams * promptTokens
    if (op.kind === 'linear') flop += 2 * rows * elements(op.args.weight)
    if (op.kind === 'head_linear') flop += 2 * rows * elements(op.args.weight) * count(op.args.weight)
    if (op.kind === 'experts' || op.kind === 'dispatched_experts')
      // What is dispatched counts where it comes from: over all ranks it is the same.
      flop += 2 * rows * op.args.topK * (elements(op.args.gateUp) + elements(op.args.down))
    if (op.kind === 'attention') flop += 2 * pairs * op.args.heads * (op.args.qkWidth + op.args.vWidth)
  }
  return flop
}
