// What a token looks like by itself, for lists of log-probabilities: its bytes, and its text where they are whole
// characters. A token is not always text: half a character has bytes only.
import type { GenerationEngine } from '../../engine/request.js'

export interface TokenText {
  /** Replacement characters stand for bytes that are no character. */
  readonly text: string
  readonly bytes: readonly number[]
  /** A name that no other token shares: the text, or `bytes:\xe2\x82` where the bytes are not whole characters. */
  readonly key: string
  /** Characters that the token adds to a text (special tokens add none). */
  readonly shown: number
}

const strict = new TextDecoder('utf-8', { fatal: true, ignoreBOM: true })
const lenient = new TextDecoder('utf-8', { ignoreBOM: true })
const encoder = new TextEncoder()

/** Texts of the tokens of `engine`, kept. Without a tokenizer a token is called `token_id:7`. */
export class TokenTexts {
  readonly #engine: GenerationEngine
  readonly #known = new Map<number, TokenText>()

  constructor(engine: GenerationEngine) {
    this.#engine = engine
  }

  of(id: number): TokenText {
    let found = this.#known.get(id)
    if (found === undefined) {
      found = this.#look(id)
      this.#known.set(id, found)
    }
    return found
  }

  #look(id: number): TokenText {
    const { tokenizer } = this.#engine
    if (tokenizer === null) {
      const text = `token_id:${id}`
      return { text, bytes: [...encoder.encode(text)], key: text, shown: 0 }
    }
    const bytes = tokenizer.tokenBytes?.(id) ?? encoder.encode(tokenizer.decode([id], { skipSpecialTokens: false }))
    const text = lenient.decode(bytes)
    const special = tokenizer.decode([id], { skipSpecialTokens: true }) === '' && text !== ''
    let key = text
    try {
      strict.decode(bytes)
    } catch {
      key = `bytes:${[...bytes].map(b => `\\x${b.toString(16).padStart(2, '0')}`).join('')}`
    }
    return { text, bytes: [...bytes], key, shown: special ? 0 : text.length }
  }
}

const texts = new WeakMap<GenerationEngine, TokenTexts>()

export function tokenTexts(engine: GenerationEngine): TokenTexts {
  let found = texts.get(engine)
  if (found === undefined) {
    found = new TokenTexts(engine)
    texts.set(engine, found)
  }
  return found
}
