// Rotary embeddings as transformers 5 defines them (modeling_rope_utils.py), from config.json in either spelling:
// default and yarn (arXiv 2309.00071). Angles in double precision.
import type { Json, OracleCheckpoint } from './tensors.js'

export interface Rope {
  /** Elements of a head that rotate: its first ones. */
  readonly width: number
  /** Pairs are (2i, 2i+1) instead of (i, i + width/2). */
  readonly interleaved: boolean
  readonly frequencies: readonly number[]
  /** On cosines and sines. */
  readonly factor: number
}

const mscale = (factor: number, m: number): number => (factor <= 1 ? 1 : 0.1 * m * Math.log(factor) + 1)

function parameters({ config }: OracleCheckpoint): Json {
  const given = (config['rope_parameters'] ?? config['rope_scaling'] ?? {}) as Json
  return { rope_theta: config['rope_theta'] ?? 10_000, ...given }
}

export function ropeOf(c: OracleCheckpoint, headDim: number, interleaved: boolean): Rope {
  const p = parameters(c)
  const partial = (p['partial_rotary_factor'] ?? c.config['partial_rotary_factor'] ?? 1) as number
  const width = Math.trunc(headDim * partial)
  const theta = p['rope_theta'] as number
  const plain = Array.from({ length: width / 2 }, (_, i) => theta ** ((-2 * i) / width))
  const kind = p['rope_type'] ?? p['type'] ?? 'default'
  if (kind === 'default') return { width, interleaved, frequencies: plain, factor: 1 }
  if (kind !== 'yarn') throw new Error(`the oracle has no rope of type ${String(kind)}`)

  const n = (name: string, fallback: number): number => (p[name] as number | undefined) ?? fallback
  const original = n('original_max_position_embeddings', c.number('max_position_embeddings'))
  const stretch = n('factor', c.number('max_position_embeddings') / original)
  const dimension = (turns: number): number =>
    (width * Math.log(original / (turns * 2 * Math.PI))) / (2 * Math.log(theta))
  let low = dimension(n('beta_fast', 32))
  let high = dimension(n('beta_slow', 1))
  if (p['truncate'] !== false) [low, high] = [Math.floor(low), Math.ceil(high)]
  low = Math.max(low, 0)
  high = Math.min(high, width - 1)
  if (low === high) high += 0.001
  const frequencies = plain.map((f, i) => {
    const ramp = Math.min(1, Math.max(0, (i - low) / (high - low)))
    return (f / stretch) * ramp + f * (1 - ramp)
  })
  const [m, all] = [n('mscale', 0), n('mscale_all_dim', 0)]
  const factor = m && all ? mscale(stretch, m) / mscale(stretch, all) : mscale(stretch, 1)
  return { width, interleaved, frequencies, factor: n('attention_factor', factor) }
}

/** DeepSeek-V3 under yarn: the softmax scale takes mscale(factor, mscale_all_dim) twice. */
export function softmaxFactor(c: OracleCheckpoint): number {
  const p = parameters(c)
  const all = p['mscale_all_dim'] as number | undefined
  const kind = p['rope_type'] ?? p['type'] ?? 'default'
  return kind === 'default' || !all ? 1 : mscale(p['factor'] as number, all) ** 2
}

export function rotate(x: Float64Array, rope: Rope, position: number): Float64Array {
  const out = x.slice()
  rope.frequencies.forEach((frequency, i) => {
    const [a, b] = rope.interleaved ? [2 * i, 2 * i + 1] : [i, i + rope.width / 2]
    const [cos, sin] = [Math.cos(position * frequency) * rope.factor, Math.sin(position * frequency) * rope.factor]
    out[a] = x[a]! * cos - x[b]! * sin
    out[b] = x[b]! * cos + x[a]! * sin
  })
  return out
}
