// Changes to rows of logits between the forward pass and the draw: penalties, bias, a minimum of tokens. They are a pure
// function of the request and its own tokens, so they depend neither on the batch nor on when the request was resumed.
// Every change is sparse and is taken back after the draw, so that log-probabilities are those of the model itself.
import type { LocalBatch, LogitEdits, RequestState } from '../scheduler/index.js'

/** How often each token occurs in a request, kept up to date as the request grows. */
export interface TokenCounts {
  readonly prompt: ReadonlySet<number>
  /** Drawn tokens. */
  readonly drawn: ReadonlyMap<number, number>
}

/** What a row held before an edit. */
export interface Undo {
  readonly index: number
  readonly value: number
}

/**
 * Edits one row [vocab], in this order: repetition penalty on tokens of prompt and output (positive logits divided,
 * negative ones multiplied; Keskar et al. 2019), frequency and presence penalties on drawn tokens (OpenAI's formula),
 * bias added, and end tokens ruled out until `minTokens` are drawn.
 * @param row of all logits; `base` is where this row begins
 * @param undo gets the former values, oldest first
 */
export function editRow(
  row: Float32Array,
  base: number,
  edits: LogitEdits,
  counts: TokenCounts,
  drawnTokens: number,
  endTokenIds: readonly number[],
  undo: Undo[],
): void {
  const set = (token: number, value: number): void => {
    const index = base + token
    undo.push({ index, value: row[index]! })
    row[index] = value
  }
  const { repetitionPenalty, frequencyPenalty, presencePenalty } = edits
  if (repetitionPenalty !== 1) {
    const penalize = (token: number): void => {
      const value = row[base + token]!
      set(token, value > 0 ? value / repetitionPenalty : value * repetitionPenalty)
    }
    for (const token of counts.prompt) penalize(token)
    for (const token of counts.drawn.keys()) if (!counts.prompt.has(token)) penalize(token)
  }
  if (frequencyPenalty !== 0 || presencePenalty !== 0) {
    for (const [token, count] of counts.drawn) {
      set(token, row[base + token]! - frequencyPenalty * count - presencePenalty)
    }
  }
  edits.biasTokens.forEach((token, i) => {
    set(token, row[base + token]! + edits.biasValues[i]!)
  })
  if (drawnTokens < edits.minTokens) for (const token of endTokenIds) set(token, Number.NEGATIVE_INFINITY)
}

/** Applies the edits of a batch's requests to its logits, and takes them back. One per rank. */
export class LogitEditor {
  readonly #counts = new WeakMap<RequestState, { prompt: Set<number>; drawn: Map<number, number>; counted: number }>()
  readonly #undo: Undo[] = []

  /** @param logits [logit rows of the batch, vocab] */
  apply(batch: LocalBatch, logits: Float32Array, vocab: number): void {
    let row = 0
    for (const { state, sample, wantLogits, count } of batch.slices) {
      row += wantLogits ? count : sample ? 1 : 0
      const { edits, endTokenIds } = state.request
      if (!sample || edits === undefined) continue
      editRow(logits, (row - 1) * vocab, edits, this.#count(state), state.drawn, endTokenIds, this.#undo)
    }
  }

  restore(logits: Float32Array): void {
    for (let i = this.#undo.length - 1; i >= 0; i--) logits[this.#undo[i]!.index] = this.#undo[i]!.value
    this.#undo.length = 0
  }

  #count(state: RequestState): TokenCounts {
    const from = state.request.inputIds.length
    let counts = this.#counts.get(state)
    if (counts === undefined) {
      counts = { prompt: new Set(state.request.inputIds), drawn: new Map(), counted: from }
      this.#counts.set(state, counts)
    }
    for (; counts.counted < state.length; counts.counted++) {
      const token = state.tokens[counts.counted]!
      counts.drawn.set(token, (counts.drawn.get(token) ?? 0) + 1)
    }
    return counts
  }
}
