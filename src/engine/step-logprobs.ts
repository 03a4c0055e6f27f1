// Log-probabilities of a step for the requests that asked: log-softmax of the unscaled, unedited logits, with the most
// likely alternatives. Reads the rows of a step; changes nothing.
import type { LocalBatch } from '../scheduler/index.js'
import type { TokenLogprob } from './request.js'

/** What a step found for one request. */
export interface RequestLogprobs {
  readonly id: string
  /** Of the token the step drew. */
  readonly drawn: TokenLogprob | null
  /** Of prompt tokens `promptFrom`, `promptFrom + 1` …; the first token of a prompt has none. */
  readonly prompt: readonly TokenLogprob[]
  readonly promptFrom: number
}

export interface StepOutputs {
  /** [logit rows, vocab] */
  readonly logits: Float32Array
  readonly sampled: Int32Array
  readonly vocab: number
}

/** null when nobody asked. Call it before the step is committed, with edits taken back. */
export function stepLogprobs(batch: LocalBatch, outputs: StepOutputs): RequestLogprobs[] | null {
  let found: RequestLogprobs[] | null = null
  let row = 0
  for (const { state, from, count, sample, wantLogits } of batch.slices) {
    const rows = wantLogits ? count : sample ? 1 : 0
    const first = row
    row += rows
    const { id, topLogprobs, promptTopLogprobs, inputIds } = state.request
    if (rows === 0 || (topLogprobs === undefined && promptTopLogprobs === undefined)) continue
    const at = (r: number): Float32Array => outputs.logits.subarray(r * outputs.vocab, (r + 1) * outputs.vocab)
    const prompt: TokenLogprob[] = []
    if (promptTopLogprobs !== undefined && wantLogits) {
      for (let i = 0; i < count && from + i + 1 < inputIds.length; i++) {
        prompt.push(tokenLogprob(at(first + i), inputIds[from + i + 1]!, promptTopLogprobs))
      }
    }
    const drawn =
      sample && topLogprobs !== undefined ? tokenLogprob(at(row - 1), outputs.sampled[row - 1]!, topLogprobs) : null
    found ??= []
    found.push({ id, drawn, prompt, promptFrom: from + 1 })
  }
  return found
}

/** Log-softmax of `row` at `token`, and its `top` largest entries: by value, equal ones by id. */
export function tokenLogprob(row: Float32Array, token: number, top: number): TokenLogprob {
  let most = Number.NEGATIVE_INFINITY
  for (const value of row) if (value > most) most = value
  let sum = 0
  for (const value of row) if (value > Number.NEGATIVE_INFINITY) sum += Math.exp(value - most)
  const base = most + Math.log(sum)
  return {
    token,
    logprob: row[token]! - base,
    top: largest(row, top).map(id => ({ token: id, logprob: row[id]! - base })),
  }
}

/** Ids of the `count` largest entries. */
function largest(row: Float32Array, count: number): number[] {
  const best: number[] = []
  if (count === 0) return best
  for (let id = 0; id < row.length; id++) {
    const value = row[id]!
    if (best.length === count && value <= row[best[count - 1]!]!) continue
    if (Number.isNaN(value)) continue
    let place = best.length
    while (place > 0 && row[best[place - 1]!]! < value) place--
    best.splice(place, 0, id)
    if (best.length > count) best.pop()
  }
  return best
}
