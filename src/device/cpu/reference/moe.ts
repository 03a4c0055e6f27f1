// Router and experts of the reference. Ties go to the lower id; results of a token are added in slot order.
import type { GatedActivation, Kernel, Operand, PackedMatrix, ParameterVector, RouterSpec } from '../../ops.js'
import { gated, sigmoid } from './elementwise.js'
import { productBuffer, rowProduct } from './linear.js'
import { checkIndex, f32Rows, i32Rows, parameters, perRow } from './rows.js'

/** Indices of the `count` largest numbers, best first, ties to the lower index. */
function best(values: readonly number[], count: number): number[] {
  const order = values.map((_, i) => i)
  order.sort((i, j) => values[j]! - values[i]! || i - j)
  return order.slice(0, count)
}

function softmax(x: readonly number[]): number[] {
  const most = Math.max(...x)
  const e = x.map(v => Math.exp(v - most))
  const total = e.reduce((s, v) => s + v, 0)
  return e.map(v => v / total)
}

/** Experts outside the kept groups come last, whatever their scores. */
function limitGroups(choice: number[], spec: RouterSpec): void {
  const size = spec.experts / spec.groups
  const scores = Array.from({ length: spec.groups }, (_, g) => {
    const [first, second] = choice.slice(g * size, (g + 1) * size).sort((x, y) => y - x)
    return spec.groupScore === 'top2' && second !== undefined ? Math.fround(first! + second) : first!
  })
  const kept = new Set(best(scores, spec.topGroups))
  for (let i = 0; i < choice.length; i++) if (!kept.has(Math.floor(i / size))) choice[i] = -Number.MAX_VALUE
}

export function router(a: {
  ids: Operand
  weights: Operand
  logits: Operand
  bias?: ParameterVector
  spec: RouterSpec
}): Kernel {
  const { spec } = a
  const ids = i32Rows(a.ids, spec.topK)
  const weights = f32Rows(a.weights, spec.topK)
  const logits = f32Rows(a.logits, spec.experts)
  const bias = parameters(a.bias)
  return perRow([ids, weights, logits], r => {
    const x = Array.from(logits.data.subarray(logits.at(r), logits.at(r) + spec.experts))
    // Scores are f32 on every device, so that ties are ties everywhere.
    const score =
      spec.scoring === 'softmax'
        ? softmax(x).map(Math.fround)
        : spec.scoring === 'sigmoid'
          ? x.map(v => Math.fround(sigmoid(v)))
          : x
    const choice = score.map((s, i) => (bias ? Math.fround(s + bias[i]!) : s))
    if (spec.groups > 1 && spec.topGroups < spec.groups) limitGroups(choice, spec)
    const chosen = best(choice, spec.topK)
    let w = chosen.map(i => score[i]!)
    if (spec.scoring === 'softmax_after_topk') w = softmax(w)
    if (spec.normalize) {
      const total = w.reduce((s, v) => s + v, spec.scoring === 'sigmoid' ? 1e-20 : 0)
      w = w.map(v => v / total)
    }
    for (let k = 0; k < spec.topK; k++) {
      ids.data[ids.at(r) + k] = chosen[k]!
      weights.data[weights.at(r) + k] = w[k]! * spec.scale
    }
  })
}

export function experts(a: {
  out: Operand
  x: Operand
  ids: Operand
  weights: Operand
  topK: number
  gateUp: PackedMatrix
  down: PackedMatrix
  gateUpBias?: ParameterVector
  downBias?: ParameterVector
  activation: GatedActivation
  scratch: Operand
}): Kernel {
  const hidden = a.gateUp.k
  const inter = a.down.k
  const out = f32Rows(a.out, hidden)
  const x = f32Rows(a.x, hidden)
  const ids = i32Rows(a.ids, a.topK)
  const weights = f32Rows(a.weights, a.topK)
  const perToken = a.topK * (3 * inter + hidden)
  const scratch = { capacity: f32Rows({ ...a.scratch, stride: perToken }, perToken).capacity }
  const gateUpBias = parameters(a.gateUpBias)
  const downBias = parameters(a.downBias)
  const gateUp = rowProduct(a.gateUp)
  const down = rowProduct(a.down)
  const act = gated(a.activation)
  const wide = productBuffer(2 * inter)
  const middle = new Float32Array(inter)
  const narrow = productBuffer(hidden)
  const sum = new Float64Array(hidden)
  return perRow([out, x, ids, weights, scratch], r => {
    sum.fill(0)
    for (let k = 0; k < a.topK; k++) {
      const e = ids.data[ids.at(r) + k]!
      if (e < 0) continue
      checkIndex(e, a.gateUp.count, 'expert')
      const weight = weights.data[weights.at(r) + k]!
      gateUp(e, x.data, x.at(r), wide)
      // Results of a product are f32 rows on every device, as when grouped GEMMs and the activation run one by one.
      const bias = e * 2 * inter
      for (let i = 0; i < 2 * inter; i++) wide[i] = Math.fround(wide[i]! + (gateUpBias ? gateUpBias[bias + i]! : 0))
      for (let i = 0; i < inter; i++) middle[i] = act(wide[i]!, wide[inter + i]!)
      down(e, middle, 0, narrow)
      for (let i = 0; i < hidden; i++)
        sum[i]! += weight * Math.fround(narrow[i]! + (downBias ? downBias[e * hidden + i]! : 0))
    }
    for (let i = 0; i < hidden; i++) out.data[out.at(r) + i] = sum[i]!
  })
}
