// Turns ids into text one at a time. Invariant: what `push` and `flush` return, joined, is the decoding of all ids, and no
// piece ends inside a character. Bytes that are no UTF-8 become U+FFFD, as TextDecoder defines it. It knows no stop texts.
import type { Piece } from './token-pieces.js'

export interface Detokenizer {
  /** @returns the text that this id completes, maybe empty */
  push(id: number): string
  /** @returns what was held back; call once, at the end */
  flush(): string
}

export interface PieceSource {
  /** null: nothing is shown for this id. */
  piece(id: number): Piece | null
  readonly leading: { readonly content: string; readonly count: number }
}

/** For vocabularies whose tokens are bytes or text of their own: one table look-up a token. */
export class PieceDetokenizer implements Detokenizer {
  readonly #source: PieceSource
  // ignoreBOM: a byte order mark in a model's output is a character like any other.
  readonly #utf8 = new TextDecoder('utf-8', { ignoreBOM: true })
  #toStrip: number

  constructor(source: PieceSource) {
    this.#source = source
    this.#toStrip = source.leading.count
  }

  push(id: number): string {
    const piece = this.#source.piece(id)
    if (piece === null) return ''
    return this.#strip(
      typeof piece === 'string' ? this.#utf8.decode() + piece : this.#utf8.decode(piece, { stream: true }),
    )
  }

  flush(): string {
    return this.#strip(this.#utf8.decode())
  }

  #strip(text: string): string {
    if (this.#toStrip === 0 || text === '') return text
    const { content } = this.#source.leading
    let start = 0
    while (this.#toStrip > 0 && text.startsWith(content, start)) {
      start += content.length
      this.#toStrip--
    }
    if (start < text.length) this.#toStrip = 0
    return text.slice(start)
  }
}

/** Longest run of ids without a whole character before it is shown as it is. */
const MAX_HELD = 32

/**
 * For any other decoder: decodes a window twice, with and without the newest ids, and shows the difference once it does not
 * end in U+FFFD. Correct when a token's text depends on its neighbours in the window only.
 */
export class WindowDetokenizer implements Detokenizer {
  readonly #decode: (ids: readonly number[]) => string
  #ids: number[] = []
  /** Ids of the window whose text has been returned. */
  #shown = 0

  constructor(decode: (ids: readonly number[]) => string) {
    this.#decode = decode
  }

  push(id: number): string {
    this.#ids.push(id)
    const text = this.#fresh()
    if (text === '' || (text.endsWith('\uFFFD') && this.#ids.length - this.#shown < MAX_HELD)) return ''
    this.#ids = this.#ids.slice(this.#shown)
    this.#shown = this.#ids.length
    return text
  }

  flush(): string {
    const text = this.#fresh()
    this.#shown = this.#ids.length
    return text
  }

  #fresh(): string {
    return this.#decode(this.#ids).slice(this.#decode(this.#ids.slice(0, this.#shown)).length)
  }
}
