// Drawing of tokens, plainly: sort, limit, add noise, take the largest. The rules are those of kernels/cpu/sample.cpp,
// and the noise is that of runtime/random.ts, so native and reference draw the same tokens.
import { gumbel } from '../../../runtime/random.js'
import type { Kernel, Operand } from '../../ops.js'
import { f32Rows, i32Rows, perRow } from './rows.js'

/** Tokens that top-k, then top-p, then min-p leave. `scaled` is logit / temperature. */
function limit(
  logits: Float32Array,
  scaled: Float64Array,
  top: number,
  topK: number,
  topP: number,
  minP: number,
): number[] {
  const mass = scaled.map(x => (x - scaled[top]! >= -40 ? Math.exp(x - scaled[top]!) : 0))
  let order = Array.from(logits.keys()).filter(v => !Number.isNaN(logits[v]))
  if (topK > 0 || topP < 1) order.sort((i, j) => logits[j]! - logits[i]! || i - j)
  if (topK > 0 && topK < order.length) order = order.slice(0, topK)
  if (topP < 1) {
    // Without top-k the total runs over ids, else over the kept ones from the best down: the order fixes its last bits.
    const total =
      order.length < logits.length ? order.reduce((s, v) => s + mass[v]!, 0) : mass.reduce((s, m) => s + m, 0)
    let before = 0
    const end = order.findIndex(v => {
      if (before > topP * total) return true
      before += mass[v]!
      return false
    })
    if (end >= 0) order = order.slice(0, end)
  }
  return order.filter(v => mass[v]! >= minP)
}

export function sample(a: {
  out: Operand
  logits: Operand
  params: Operand
  vocab: number
  logprob?: Operand
}): Kernel {
  const out = i32Rows(a.out)
  const logits = f32Rows(a.logits, a.vocab)
  const params = f32Rows(a.params, 8)
  const logprob = a.logprob && f32Rows(a.logprob, 1)
  const words = new Uint32Array(params.data.buffer, params.data.byteOffset, params.data.length)
  return perRow([out, logits, params, ...(logprob ? [logprob] : [])], r => {
    const x = logits.data.subarray(logits.at(r), logits.at(r) + a.vocab)
    const p = params.at(r)
    const [temperature, topP, minP, topK] = params.data.subarray(p, p + 4) as unknown as [
      number,
      number,
      number,
      number,
    ]
    let top = 0
    for (let v = 1; v < a.vocab; v++) if (x[v]! > x[top]! || Number.isNaN(x[top])) top = v
    let token = top
    if (temperature > 0) {
      const scaled = Float64Array.from(x, v => v / temperature)
      let most = Number.NEGATIVE_INFINITY
      const kept = limit(x, scaled, top, Math.max(0, Math.floor(topK)), topP, minP).sort((i, j) => i - j)
      for (const v of kept) {
        const score = scaled[v]! + gumbel(words[p + 4]!, words[p + 5]!, words[p + 6]!, v)
        if (score > most) {
          most = score
          token = v
        }
      }
    }
    out.data[out.at(r)] = token
    if (!logprob) return
    let sum = 0
    for (let v = 0; v < a.vocab; v++) sum += Math.exp(x[v]! - x[top]!)
    logprob.data[logprob.at(r)] = x[token]! - x[top]! - Math.log(sum)
  })
}
