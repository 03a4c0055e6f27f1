// What each token id stands for: bytes (byte-level BPE, byte fallback) or text, so that text can be put together one token
// at a time. Read from the `decoder` of tokenizer.json; the kinds that cannot be read token by token give null, and
// detokenizer.ts then compares whole decodings instead.
import { isJsonObject } from '../json-file.js'

/** Bytes join those of the neighbours before they are read as UTF-8; text stands for itself. */
export type Piece = Uint8Array | string

export interface PieceRules {
  /** The piece of a token as written in the vocabulary. */
  pieceOf(token: string): Piece
  /** Up to `count` of `content` are dropped from the very start of the text. */
  readonly leading: { readonly content: string; readonly count: number }
}

const NOTHING = { content: '', count: 0 }
const encoder = new TextEncoder()

/**
 * The byte-level alphabet of GPT-2: printable Latin-1 characters stand for themselves, the other 68 bytes for U+0100 onwards.
 * @returns byte of each character
 */
function byteLevelAlphabet(): ReadonlyMap<string, number> {
  const bytes = new Map<string, number>()
  let next = 0x100
  for (let byte = 0; byte < 256; byte++) {
    const itself = (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae
    bytes.set(String.fromCharCode(itself ? byte : next++), byte)
  }
  return bytes
}

/** @returns the rules, or null for a decoder whose tokens depend on their neighbours */
export function pieceRules(decoder: unknown): PieceRules | null {
  const steps = flatten(decoder)
  if (steps === null || steps.length === 0) return null
  if (steps.length === 1 && steps[0]!['type'] === 'ByteLevel') return byteLevelRules()
  return sentencePieceRules(steps)
}

function flatten(decoder: unknown): Record<string, unknown>[] | null {
  if (!isJsonObject(decoder)) return null
  if (decoder['type'] !== 'Sequence') return [decoder]
  const inner = decoder['decoders']
  if (!Array.isArray(inner)) return null
  const steps: Record<string, unknown>[] = []
  for (const step of inner) {
    if (!isJsonObject(step) || step['type'] === 'Sequence') return null
    steps.push(step)
  }
  return steps
}

/** A token with a character outside the alphabet (an added token) stands for its own UTF-8, as in the tokenizers library. */
function byteLevelRules(): PieceRules {
  const alphabet = byteLevelAlphabet()
  return {
    leading: NOTHING,
    pieceOf(token) {
      const bytes: number[] = []
      for (const character of token) {
        const byte = alphabet.get(character)
        if (byte === undefined) return encoder.encode(token)
        bytes.push(byte)
      }
      return Uint8Array.from(bytes)
    },
  }
}

/** Replace, ByteFallback, Fuse, Strip at the start, Metaspace: the parts that SentencePiece models are described with. */
function sentencePieceRules(steps: readonly Record<string, unknown>[]): PieceRules | null {
  const replacements: (readonly [string, string])[] = []
  let byteFallback = false
  let fused = false
  let leading = NOTHING
  for (const step of steps) {
    switch (step['type']) {
      case 'Replace': {
        const pattern = isJsonObject(step['pattern']) ? step['pattern']['String'] : undefined
        const content = step['content']
        if (fused || byteFallback || typeof pattern !== 'string' || pattern === '' || typeof content !== 'string')
          return null
        replacements.push([pattern, content])
        break
      }
      case 'ByteFallback':
        byteFallback = true
        break
      case 'Fuse':
        fused = true
        break
      case 'Strip': {
        const { content, start, stop } = step
        if (typeof content !== 'string' || content.length !== 1 || !Number.isSafeInteger(start) || stop !== 0)
          return null
        if (start !== 0 && (!fused || leading !== NOTHING)) return null
        if (start !== 0) leading = { content, count: start as number }
        break
      }
      case 'Metaspace': {
        if (fused || byteFallback || leading !== NOTHING) return null
        const mark = step['replacement'] ?? '\u2581'
        if (typeof mark !== 'string' || mark === '') return null
        replacements.push([mark, ' '])
        if (step['prepend_scheme'] !== 'never') leading = { content: ' ', count: 1 }
        break
      }
      default:
        return null
    }
  }
  return {
    leading,
    pieceOf(token) {
      if (byteFallback && /^<0x[0-9A-Fa-f]{2}>$/.test(token))
        return Uint8Array.of(Number.parseInt(token.slice(3, 5), 16))
      let text = token
      for (const [from, to] of replacements) text = text.replaceAll(from, () => to)
      return text
    },
  }
}
