// The oracle: logits of a whole checkpoint in double precision, from the architectures' definitions in Hugging Face
// transformers 5. It shares nothing with the product: it reads files by itself and computes with plain dense arithmetic.
import { groupedAttention, latentAttention } from './attention.js'
import { feedForward } from './feed-forward.js'
import { add, linear, multiply, rmsNorm } from './math.js'
import { OracleCheckpoint } from './tensors.js'

export class Oracle {
  readonly vocab: number
  readonly #run: (ids: readonly number[]) => Float64Array

  constructor(directory: string) {
    const c = new OracleCheckpoint(directory)
    const eps = c.number('rms_norm_eps')
    const embeddings = c.rows('model.embed_tokens.weight')
    this.vocab = embeddings.length
    const layers = Array.from({ length: c.number('num_hidden_layers') }, (_, i) => {
      const norm = (name: string) => c.flat(`model.layers.${i}.${name}.weight`)
      return {
        attention: c.optional('kv_lora_rank') === null ? groupedAttention(c, i) : latentAttention(c, i),
        ffn: feedForward(c, i),
        inputNorm: norm('input_layernorm'),
        postNorm: norm('post_attention_layernorm'),
      }
    })
    const finalNorm = c.flat('model.norm.weight')
    const head = c.is('tie_word_embeddings') ? (x: Float64Array) => multiply(embeddings, x) : linear(c, 'lm_head')
    this.#run = ids => {
      let h = ids.map(id => embeddings[id]!)
      for (const { attention, ffn, inputNorm, postNorm } of layers) {
        const attended = attention(h.map(row => rmsNorm(row, inputNorm, eps)))
        h = h.map((row, t) => add(row, attended[t]!))
        h = h.map(row => add(row, ffn(rmsNorm(row, postNorm, eps))))
      }
      return Float64Array.from(h.flatMap(row => [...head(rmsNorm(row, finalNorm, eps))]))
    }
  }

  /** [ids.length, vocab] */
  logits(ids: readonly number[]): Float64Array {
    return this.#run(ids)
  }
}
