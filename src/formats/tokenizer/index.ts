// Text to tokens and back, one token at a time; chat messages to text; stop texts.
export type { ChatMessageLike } from './chat-template.js'
export type { Detokenizer } from './detokenizer.js'
export { loadTokenizer } from './load-tokenizer.js'
export { type StopMatch, StopMatcher } from './stop-matcher.js'
export { IncrementalDetokenizer, Tokenizer } from './text-tokenizer.js'
export { TokenizerError } from './tokenizer-errors.js'
