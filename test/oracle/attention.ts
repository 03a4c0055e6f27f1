// Attention of one whole sequence as the modeling files of transformers 5 define it: every key and value spelled out, latent
// attention expanded into heads (not absorbed), no cache, no pages.
import { linear, rmsNorm, softmax } from './math.js'
import { ropeOf, rotate, softmaxFactor } from './rope.js'
import type { OracleCheckpoint, Rows } from './tensors.js'

/** [tokens, hidden] → [tokens, hidden] */
export type Attention = (x: Rows) => Rows

interface Heads {
  /** By token, then head. */
  readonly q: readonly Rows[]
  readonly k: readonly Rows[]
  readonly v: readonly Rows[]
}

const cutInto = (row: Float64Array, count: number): Rows => {
  const width = row.length / count
  return Array.from({ length: count }, (_, h) => row.slice(h * width, (h + 1) * width))
}

/** Causal softmax(q·k·scale)·v of every head, side by side. `sinks`: one more logit a head, without a value. */
function attend({ q, k, v }: Heads, scale: number, window: number | null, sinks: Float64Array | null): Float64Array[] {
  return q.map((heads, t) => {
    const first = window === null ? 0 : Math.max(0, t - window + 1)
    const seen = Array.from({ length: t + 1 - first }, (_, i) => first + i)
    const outputs = heads.map((query, h) => {
      const kvHead = Math.floor((h * k[0]!.length) / heads.length)
      const logits = seen.map(s => scale * query.reduce((sum, value, i) => sum + value * k[s]![kvHead]![i]!, 0))
      const weights = softmax(sinks ? [...logits, sinks[h]!] : logits)
      return Float64Array.from(v[0]![kvHead]!, (_, i) =>
        seen.reduce((sum, s, j) => sum + weights[j]! * v[s]![kvHead]![i]!, 0),
      )
    })
    return Float64Array.from(outputs.flatMap(o => [...o]))
  })
}

/** Window of a layer, as each architecture's configuration class fills `layer_types` and `sliding_window`. */
function windowOf(c: OracleCheckpoint, layer: number): number | null {
  const window = c.optional('sliding_window')
  const types = c.config['layer_types'] as string[] | undefined
  const sliding = types?.[layer] === 'sliding_attention'
  switch (c.config['model_type']) {
    case 'mixtral':
      return window
    case 'qwen3_moe':
      return c.is('use_sliding_window') ? window : null
    case 'qwen2_moe':
      if (!c.is('use_sliding_window')) return null
      return sliding || (!types && layer % 2 === 0 && layer < (c.optional('max_window_layers') ?? 28)) ? window : null
    case 'gpt_oss':
      return sliding || (!types && layer % 2 === 0) ? window : null
    default:
      return null
  }
}

export function groupedAttention(c: OracleCheckpoint, layer: number): Attention {
  const p = `model.layers.${layer}.self_attn`
  const type = c.config['model_type']
  const heads = c.number('num_attention_heads')
  const kvHeads = c.optional('num_key_value_heads') ?? heads
  const headDim = c.optional('head_dim') ?? c.number('hidden_size') / heads
  const eps = c.number('rms_norm_eps')
  const [qProj, kProj, vProj, oProj] = ['q', 'k', 'v', 'o'].map(n => linear(c, `${p}.${n}_proj`))
  const rope = ropeOf(c, headDim, false)
  const clip = type === 'olmoe' ? c.optional('clip_qkv') : null
  const clamp = (x: Float64Array) => (clip === null ? x : x.map(v => Math.min(clip, Math.max(-clip, v))))
  const norms = new Map(
    ['q_norm', 'k_norm'].flatMap(n => (c.has(`${p}.${n}.weight`) ? [[n, c.flat(`${p}.${n}.weight`)] as const] : [])),
  )
  const project = (x: Float64Array, of: typeof qProj, norm: string | null, count: number): Rows => {
    let row = of!(x)
    const weight = norm === null ? undefined : norms.get(norm)
    // OLMoE's norms cover the whole row, those of Qwen3 and GLM one head.
    if (weight && type === 'olmoe') row = rmsNorm(row, weight, eps)
    const parts = cutInto(clamp(row), count)
    return weight && type !== 'olmoe' ? parts.map(head => rmsNorm(head, weight, eps)) : parts
  }
  const sinks = type === 'gpt_oss' ? c.flat(`${p}.sinks`) : null
  return x => {
    const q = x.map((row, t) => project(row, qProj, 'q_norm', heads).map(h => rotate(h, rope, t)))
    const k = x.map((row, t) => project(row, kProj, 'k_norm', kvHeads).map(h => rotate(h, rope, t)))
    const v = x.map(row => project(row, vProj, null, kvHeads))
    return attend({ q, k, v }, headDim ** -0.5, windowOf(c, layer), sinks).map(row => oProj!(row))
  }
}

/** The inner norms are built without the config's epsilon. */
const INNER_EPS = 1e-6

export function latentAttention(c: OracleCheckpoint, layer: number): Attention {
  const p = `model.layers.${layer}.self_attn`
  const heads = c.number('num_attention_heads')
  const [latent, nope, ropeDim] = ['kv_lora_rank', 'qk_nope_head_dim', 'qk_rope_head_dim'].map(n => c.number(n)) as [
    number,
    number,
    number,
  ]
  const rope = ropeOf(c, ropeDim, c.config['rope_interleave'] !== false)
  const scale = (nope + ropeDim) ** -0.5 * (c.config['model_type'] === 'deepseek_v3' ? softmaxFactor(c) : 1)
  const kvA = linear(c, `${p}.kv_a_proj_with_mqa`)
  const kvNorm = c.flat(`${p}.kv_a_layernorm.weight`)
  const kvB = linear(c, `${p}.kv_b_proj`)
  const oProj = linear(c, `${p}.o_proj`)
  const queries = queryOf(c, p)
  const join = (a: Float64Array, b: Float64Array) => Float64Array.from([...a, ...b])
  return x => {
    const q = x.map((row, t) =>
      cutInto(queries(row), heads).map(h => join(h.slice(0, nope), rotate(h.slice(nope), rope, t))),
    )
    const compressed = x.map(row => kvA(row))
    const expanded = compressed.map(row => cutInto(kvB(rmsNorm(row.slice(0, latent), kvNorm, INNER_EPS)), heads))
    const k = expanded.map((perHead, t) => {
      const shared = rotate(compressed[t]!.slice(latent), rope, t)
      return perHead.map(h => join(h.slice(0, nope), shared))
    })
    const v = expanded.map(perHead => perHead.map(h => h.slice(nope)))
    return attend({ q, k, v }, scale, null, null).map(row => oProj(row))
  }
}

function queryOf(c: OracleCheckpoint, p: string): (x: Float64Array) => Float64Array {
  if (c.optional('q_lora_rank') === null) return linear(c, `${p}.q_proj`)
  const [down, up] = [linear(c, `${p}.q_a_proj`), linear(c, `${p}.q_b_proj`)]
  const norm = c.flat(`${p}.q_a_layernorm.weight`)
  return x => up(rmsNorm(down(x), norm, INNER_EPS))
}
