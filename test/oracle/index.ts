// The oracle: logits of a whole checkpoint in double precision, from the architectures' definitions in Hugging Face
// transformers 5. It shares nothing with the product: it reads files by itself and computes with plain dense arithmetic.
import { groupedAttention, latentAttention } from './attention.js'
import { feedForward, type Mixture, type Travel } from './feed-forward.js'
import { add, linear, multiply, rmsNorm } from './math.js'
import { OracleCheckpoint, type Rows } from './tensors.js'

interface Layer {
  /** Attention with its residual: [tokens, hidden] → [tokens, hidden]. */
  readonly attend: (h: Rows) => Rows
  /** What the feed-forward reads of a row. */
  readonly norm: (row: Float64Array) => Float64Array
  readonly dense: ((x: Float64Array) => Float64Array) | null
  readonly mixture: Mixture | null
}

export class Oracle {
  readonly vocab: number
  readonly layers: readonly Layer[]
  readonly #embeddings: Rows
  readonly #head: (row: Float64Array) => Float64Array

  constructor(directory: string) {
    const c = new OracleCheckpoint(directory)
    const eps = c.number('rms_norm_eps')
    const embeddings = c.rows('model.embed_tokens.weight')
    this.#embeddings = embeddings
    this.vocab = embeddings.length
    this.layers = Array.from({ length: c.number('num_hidden_layers') }, (_, i): Layer => {
      const norm = (name: string) => c.flat(`model.layers.${i}.${name}.weight`)
      const attention = c.optional('kv_lora_rank') === null ? groupedAttention(c, i) : latentAttention(c, i)
      const [inputNorm, postNorm] = [norm('input_layernorm'), norm('post_attention_layernorm')]
      return {
        attend(h) {
          const attended = attention(h.map(row => rmsNorm(row, inputNorm, eps)))
          return h.map((row, t) => add(row, attended[t]!))
        },
        norm: row => rmsNorm(row, postNorm, eps),
        ...feedForward(c, i),
      }
    })
    const finalNorm = c.flat('model.norm.weight')
    const head = c.is('tie_word_embeddings') ? (x: Float64Array) => multiply(embeddings, x) : linear(c, 'lm_head')
    this.#head = row => head(rmsNorm(row, finalNorm, eps))
  }

  /** [ids.length, vocab] */
  logits(ids: readonly number[], travel: Travel | null = null): Float64Array {
    return this.after(0, this.embed(ids), travel)
  }

  embed(ids: readonly number[]): Rows {
    return ids.map(id => this.#embeddings[id]!)
  }

  /** One layer: the rows of the residual before it → after it. Rows before `from` keep out of the feed-forward. */
  step(layer: number, h: Rows, travel: Travel | null = null, from = 0): Rows {
    const { attend, norm, dense, mixture } = this.layers[layer]!
    return attend(h).map((row, token) => {
      if (token < from) return row
      const x = norm(row)
      return add(row, mixture ? mixture.run(x, { layer, token }, travel) : dense!(x))
    })
  }

  /** Logits [rows, vocab] from the residual before `layer`. */
  after(layer: number, h: Rows, travel: Travel | null = null): Float64Array {
    let rows = h
    for (let l = layer; l < this.layers.length; l++) rows = this.step(l, rows, travel)
    return this.head(rows)
  }

  head(rows: Rows): Float64Array {
    return Float64Array.from(rows.flatMap(row => [...this.#head(row)]))
  }
}
