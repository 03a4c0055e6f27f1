// A model's tokenizer: text to ids through @huggingface/tokenizers, ids to text by our own pieces (which stream), chat
// messages to text. Implements the engine's TextTokenizer without importing it: formats lie below the engine.
import type { Tokenizer as CoreTokenizer } from '@huggingface/tokenizers'
import type { ChatMessageLike, ChatTemplate } from './chat-template.js'
import { type Detokenizer, PieceDetokenizer, type PieceSource, WindowDetokenizer } from './detokenizer.js'
import type { Piece, PieceRules } from './token-pieces.js'
import { TokenizerError } from './tokenizer-errors.js'

export interface TokenizerParts {
  readonly core: CoreTokenizer
  readonly rules: PieceRules | null
  readonly chat: ChatTemplate | null
  readonly specialIds: ReadonlySet<number>
  /** Ids put before and after a text when special tokens are asked for; null: as the post-processor of tokenizer.json says. */
  readonly affixes: { readonly before: readonly number[]; readonly after: readonly number[] } | null
  readonly vocabSize: number
  readonly eosToken: string | null
  readonly bosToken: string | null
}

export class Tokenizer {
  readonly #parts: TokenizerParts
  readonly #pieces = new Map<number, Piece | null>()

  constructor(parts: TokenizerParts) {
    this.#parts = parts
  }

  /** Ids that have a token: one more than the largest. */
  get vocabSize(): number {
    return this.#parts.vocabSize
  }

  get eosToken(): string | null {
    return this.#parts.eosToken
  }

  get bosToken(): string | null {
    return this.#parts.bosToken
  }

  get hasChatTemplate(): boolean {
    return this.#parts.chat !== null
  }

  /** The id of a token as written in the vocabulary, or null. */
  idOf(token: string): number | null {
    return this.#parts.core.token_to_id(token) ?? null
  }

  /** Special tokens (bos) are added unless a chat template has written them. */
  encode(text: string, { addSpecialTokens = true }: { readonly addSpecialTokens?: boolean } = {}): number[] {
    const { core, affixes } = this.#parts
    const byPostProcessor = addSpecialTokens && affixes === null
    const found: (number | undefined)[] = guard(
      'encode this text',
      () => core.encode(text, { add_special_tokens: byPostProcessor }).ids,
    )
    // Characters that a vocabulary without an unknown token cannot express have no id and are left out.
    const ids = found.filter(id => id !== undefined)
    return addSpecialTokens && affixes !== null ? [...affixes.before, ...ids, ...affixes.after] : ids
  }

  /** Ids outside the vocabulary show nothing. */
  decode(ids: readonly number[], options: { readonly skipSpecialTokens?: boolean } = {}): string {
    if (this.#parts.rules === null) return this.#decodeWhole(ids, options.skipSpecialTokens ?? false)
    const detokenizer = this.detokenizer(options)
    let text = ''
    for (const id of ids) text += detokenizer.push(id)
    return text + detokenizer.flush()
  }

  /** The bytes one token stands for; null where they depend on its neighbours, or where there is no such token. */
  tokenBytes(id: number): Uint8Array | null {
    const { rules } = this.#parts
    const piece = rules === null ? null : this.#piece(id, rules)
    return typeof piece === 'string' ? new TextEncoder().encode(piece) : piece
  }

  /** A fresh stream of text; joined, it is `decode` of the same ids. */
  detokenizer(options: { readonly skipSpecialTokens?: boolean } = {}): Detokenizer {
    const skip = options.skipSpecialTokens ?? false
    const { rules, specialIds } = this.#parts
    if (rules === null) return new WindowDetokenizer(ids => this.#decodeWhole(ids, skip))
    const source: PieceSource = {
      leading: rules.leading,
      piece: id => (skip && specialIds.has(id) ? null : this.#piece(id, rules)),
    }
    return new PieceDetokenizer(source)
  }

  /** Renders the chat template. @throws TokenizerError when there is none, or it refuses the messages */
  applyChatTemplate(messages: readonly ChatMessageLike[], options: Readonly<Record<string, unknown>> = {}): string {
    const { chat } = this.#parts
    if (chat === null) throw new TokenizerError('SY_TOKENIZER_NO_CHAT_TEMPLATE')
    return chat.render(messages, options, () => new Date())
  }

  #piece(id: number, rules: PieceRules): Piece | null {
    let piece = this.#pieces.get(id)
    if (piece === undefined) {
      const token = this.#parts.core.id_to_token(id)
      piece = token === undefined ? null : rules.pieceOf(token)
      this.#pieces.set(id, piece)
    }
    return piece
  }

  #decodeWhole(ids: readonly number[], skip: boolean): string {
    const known = ids.filter(
      id => this.#parts.core.id_to_token(id) !== undefined && !(skip && this.#parts.specialIds.has(id)),
    )
    if (known.length === 0) return ''
    return guard('decode these tokens', () => this.#parts.core.decode(known, { clean_up_tokenization_spaces: false }))
  }
}

/** A damaged tokenizer.json may fail on some texts only; the library then throws whatever it meets. */
function guard<T>(action: string, run: () => T): T {
  try {
    return run()
  } catch (error) {
    const found = String((error as Error).message).slice(0, 200)
    throw new TokenizerError('SY_TOKENIZER_FAILED', { action, found }, { cause: error })
  }
}

/** Text of a growing list of ids; special tokens are left out unless asked for, as servers do. */
export class IncrementalDetokenizer implements Detokenizer {
  readonly #inner: Detokenizer

  constructor(tokenizer: Tokenizer, options: { readonly skipSpecialTokens?: boolean } = {}) {
    this.#inner = tokenizer.detokenizer({ skipSpecialTokens: options.skipSpecialTokens ?? true })
  }

  push(id: number): string {
    return this.#inner.push(id)
  }

  flush(): string {
    return this.#inner.flush()
  }
}
