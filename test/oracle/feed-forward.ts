// Dense and mixture-of-experts feed-forward of one token as the modeling files of transformers 5 define them: which layers are
// sparse, how experts are chosen and weighed, what is shared.
import { add, linear, multiply, sigmoid, silu, softmax, topIndices } from './math.js'
import type { OracleCheckpoint } from './tensors.js'

export type FeedForward = (x: Float64Array) => Float64Array

/** Router logits → experts, and the weights of experts that are given. */
interface Chooser {
  readonly choose: (logits: readonly number[]) => readonly number[]
  readonly weigh: (logits: readonly number[], experts: readonly number[]) => readonly number[]
}

/** A token's place in a run: its layer, and its index in the sequence. */
export interface Place {
  readonly layer: number
  readonly token: number
}

/** What happens to rows between a token and its experts when they live on several ranks. All rows are [hidden]. */
export interface Travel {
  readonly ranks: number
  /** The row that arrives at the experts. */
  send(x: Float64Array, at: Place): Float64Array
  /** The weighted sum over the experts of one rank, as it arrives back. */
  sendBack(partial: Float64Array, at: Place, rank: number): Float64Array
  /** The experts to take instead of `own`. */
  choose(own: readonly number[], at: Place): readonly number[]
}

/** A mixture of experts with its parts laid open. */
export interface Mixture {
  readonly experts: readonly FeedForward[]
  /** What a token chooses, with weights. */
  route(x: Float64Array, at: Place, travel: Travel | null): { experts: readonly number[]; weights: readonly number[] }
  run(x: Float64Array, at: Place, travel: Travel | null): Float64Array
}

function mlp(c: OracleCheckpoint, prefix: string, names = ['gate_proj', 'up_proj', 'down_proj']): FeedForward {
  const [gate, up, down] = names.map(n => linear(c, `${prefix}.${n}`))
  return x => {
    const u = up!(x)
    return down!(gate!(x).map((g, i) => silu(g) * u[i]!))
  }
}

const expertCount = (c: OracleCheckpoint): number => c.number('n_routed_experts', 'num_local_experts', 'num_experts')

function isSparse(c: OracleCheckpoint, layer: number): boolean {
  switch (c.config['model_type']) {
    case 'qwen2_moe':
    case 'qwen3_moe': {
      const onlyDense = (c.config['mlp_only_layers'] as number[] | undefined) ?? []
      return !onlyDense.includes(layer) && (layer + 1) % (c.optional('decoder_sparse_step') ?? 1) === 0
    }
    case 'deepseek_v2':
    case 'deepseek_v3':
    case 'glm4_moe':
      return layer >= (c.optional('first_k_dense_replace') ?? 0)
    default:
      return true
  }
}

const pick = (scores: readonly number[], experts: readonly number[]): number[] => experts.map(e => scores[e]!)
const shares = (weights: readonly number[], epsilon = 0): number[] => {
  const sum = weights.reduce((a, b) => a + b, 0) + epsilon
  return weights.map(w => w / sum)
}

/**
 * Scores of experts outside the best `topk_group` groups become -Infinity, as in DeepSeek's own code. (transformers long wrote 0,
 * which a negative correction turns into a good score.)
 */
function limitToGroups(c: OracleCheckpoint, scores: readonly number[], groupScore: (group: number[]) => number) {
  const groups = c.optional('n_group') ?? 1
  const size = scores.length / groups
  const perGroup = Array.from({ length: groups }, (_, g) => groupScore(scores.slice(g * size, (g + 1) * size)))
  const kept = topIndices(perGroup, c.optional('topk_group') ?? groups)
  return scores.map((s, e) => (kept.includes(Math.floor(e / size)) ? s : Number.NEGATIVE_INFINITY))
}

function chooser(c: OracleCheckpoint, prefix: string): Chooser {
  const topK = c.number('num_experts_per_tok')
  switch (c.config['model_type']) {
    case 'deepseek_v3':
    case 'glm4_moe': {
      const correction = c.flat(`${prefix}.gate.e_score_correction_bias`)
      const best2 = (group: number[]) => topIndices(group, 2).reduce((sum, i) => sum + group[i]!, 0)
      return {
        choose(logits) {
          const corrected = logits.map((v, e) => sigmoid(v) + correction[e]!)
          return topIndices(limitToGroups(c, corrected, best2), topK)
        },
        weigh(logits, experts) {
          const weights = pick(logits.map(sigmoid), experts)
          const scaled = c.is('norm_topk_prob') ? shares(weights, 1e-20) : weights
          return scaled.map(w => w * c.number('routed_scaling_factor'))
        },
      }
    }
    case 'deepseek_v2':
      return {
        choose(logits) {
          const scores = softmax(logits)
          const grouped = c.config['topk_method'] === 'group_limited_greedy'
          return topIndices(grouped ? limitToGroups(c, scores, group => Math.max(...group)) : scores, topK)
        },
        weigh: (logits, experts) => pick(softmax(logits), experts).map(w => w * c.number('routed_scaling_factor')),
      }
    case 'gpt_oss':
      return {
        choose: logits => topIndices(logits, topK),
        weigh: (logits, experts) => softmax(pick(logits, experts)),
      }
    default: {
      const normalise = c.config['model_type'] === 'mixtral' || c.is('norm_topk_prob')
      return {
        choose: logits => topIndices(softmax(logits), topK),
        weigh(logits, experts) {
          const weights = pick(softmax(logits), experts)
          return normalise ? shares(weights) : weights
        },
      }
    }
  }
}

/** gpt-oss: experts stacked in one tensor, stored [input, output], gate and up interleaved, clamped. */
function stackedExpert(c: OracleCheckpoint, prefix: string, e: number): FeedForward {
  const transposed = (name: string) => {
    const rows = c.rows(name, e)
    return Array.from({ length: rows[0]!.length }, (_, n) => Float64Array.from(rows, row => row[n]!))
  }
  const slice = (name: string, width: number) => c.flat(name).slice(e * width, (e + 1) * width)
  const [gateUp, down] = [transposed(`${prefix}.gate_up_proj`), transposed(`${prefix}.down_proj`)]
  const gateUpBias = slice(`${prefix}.gate_up_proj_bias`, gateUp.length)
  const downBias = slice(`${prefix}.down_proj_bias`, down.length)
  const [alpha, limit] = [1.702, c.optional('swiglu_limit') ?? 7]
  return x => {
    const both = add(multiply(gateUp, x), gateUpBias)
    const inner = Float64Array.from({ length: both.length / 2 }, (_, i) => {
      const gate = Math.min(limit, both[2 * i]!)
      const up = Math.min(limit, Math.max(-limit, both[2 * i + 1]!))
      return (up + 1) * gate * sigmoid(alpha * gate)
    })
    return add(multiply(down, inner), downBias)
  }
}

/** The feed-forward of a layer; `null` as its mixture where it is dense. */
export function feedForward(
  c: OracleCheckpoint,
  layer: number,
): { dense: FeedForward; mixture: null } | { dense: null; mixture: Mixture } {
  const base = `model.layers.${layer}`
  if (!isSparse(c, layer)) return { dense: mlp(c, `${base}.mlp`), mixture: null }
  const type = c.config['model_type']
  const prefix = type === 'mixtral' ? `${base}.block_sparse_moe` : `${base}.mlp`
  const router = linear(c, `${prefix}.${type === 'gpt_oss' ? 'router' : 'gate'}`)
  const { choose, weigh } = chooser(c, prefix)
  const experts = Array.from({ length: expertCount(c) }, (_, e) => {
    if (type === 'gpt_oss') return stackedExpert(c, `${prefix}.experts`, e)
    return mlp(c, `${prefix}.experts.${e}`, type === 'mixtral' ? ['w1', 'w3', 'w2'] : undefined)
  })
  const shared = sharedExpert(c, prefix)
  const route: Mixture['route'] = (x, at, travel) => {
    const logits = [...router(x)]
    const own = choose(logits)
    const chosen = travel ? travel.choose(own, at) : own
    return { experts: chosen, weights: weigh(logits, chosen) }
  }
  const sumOf = (x: Float64Array, choice: ReturnType<typeof route>, wanted: (e: number) => boolean) =>
    choice.experts.reduce<Float64Array>((sum, e, i) => {
      if (!wanted(e)) return sum
      return add(
        sum,
        experts[e]!(x).map(v => v * choice.weights[i]!),
      )
    }, new Float64Array(x.length))
  const run: Mixture['run'] = (x, at, travel) => {
    const choice = route(x, at, travel)
    const start = shared ? shared(x) : new Float64Array(x.length)
    if (!travel)
      return add(
        start,
        sumOf(x, choice, () => true),
      )
    const arrived = travel.send(x, at)
    // Experts lie on ranks in order, equally many on each; ranks that hold none of the token's send nothing back.
    const rankOf = (e: number) => Math.floor((e * travel.ranks) / experts.length)
    const ranks = [...new Set(choice.experts.map(rankOf))].sort((a, b) => a - b)
    return ranks.reduce(
      (sum, rank) =>
        add(
          sum,
          travel.sendBack(
            sumOf(arrived, choice, e => rankOf(e) === rank),
            at,
            rank,
          ),
        ),
      start,
    )
  }
  return { dense: null, mixture: { experts, route, run } }
}

function sharedExpert(c: OracleCheckpoint, prefix: string): FeedForward | null {
  if (c.config['model_type'] === 'qwen2_moe') {
    const [expert, gate] = [mlp(c, `${prefix}.shared_expert`), linear(c, `${prefix}.shared_expert_gate`)]
    return x => {
      const open = sigmoid(gate(x)[0]!)
      return expert(x).map(v => v * open)
    }
  }
  return (c.optional('n_shared_experts') ?? 0) > 0 ? mlp(c, `${prefix}.shared_experts`) : null
}
