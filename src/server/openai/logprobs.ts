// Log-probabilities in OpenAI's two shapes: the lists of /v1/completions and the objects of chat.
// JSON knows no -Infinity: a token without probability gets the number that OpenAI's servers send, -9999.
import type { TokenLogprob } from '../../engine/request.js'
import type { TokenTexts } from './token-text.js'

export const finite = (logprob: number): number => Math.max(-9999, logprob)

export interface CompletionLogprobs {
  readonly tokens: string[]
  readonly token_logprobs: (number | null)[]
  readonly top_logprobs: (Record<string, number> | null)[] | null
  /** Where each token begins in the choice's text. */
  readonly text_offset: number[]
}

/** Makes the lists of one choice, piece by piece: offsets go on from piece to piece. */
export class CompletionLogprobWriter {
  readonly #texts: TokenTexts
  readonly #top: number
  #offset = 0

  constructor(texts: TokenTexts, top: number) {
    this.#texts = texts
    this.#top = top
  }

  /** @param ids tokens of `logprobs`, whose first has none when it begins a prompt */
  write(ids: readonly number[], logprobs: readonly (TokenLogprob | null)[]): CompletionLogprobs {
    const top: (Record<string, number> | null)[] = []
    const lists: CompletionLogprobs = {
      tokens: [],
      token_logprobs: [],
      top_logprobs: this.#top === 0 ? null : top,
      text_offset: [],
    }
    ids.forEach((id, i) => {
      const found = logprobs[i] ?? null
      const { key, shown } = this.#texts.of(id)
      lists.tokens.push(key)
      lists.token_logprobs.push(found && finite(found.logprob))
      lists.text_offset.push(this.#offset)
      this.#offset += shown
      top.push(found && Object.fromEntries(found.top.map(t => [this.#texts.of(t.token).key, finite(t.logprob)])))
    })
    return lists
  }
}

export function chatLogprobs(texts: TokenTexts, logprobs: readonly TokenLogprob[]) {
  const one = (token: number, logprob: number) => {
    const { text, bytes } = texts.of(token)
    return { token: text, logprob: finite(logprob), bytes }
  }
  return {
    content: logprobs.map(found => ({
      ...one(found.token, found.logprob),
      top_logprobs: found.top.map(t => one(t.token, t.logprob)),
    })),
    refusal: null,
  }
}
