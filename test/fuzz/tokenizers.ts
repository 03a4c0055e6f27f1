// Small tokenizers of each kind, to be mutated: byte-level BPE, SentencePiece-like BPE, Unigram, WordPiece.
import type { JsonValue } from './mutate.js'

const added: JsonValue = [
  { id: 0, content: '<unk>', special: true, normalized: false },
  { id: 1, content: '<s>', special: true, normalized: false },
  { id: 2, content: '</s>', special: true, normalized: false },
]

const template: JsonValue = {
  type: 'TemplateProcessing',
  single: [{ SpecialToken: { id: '<s>', type_id: 0 } }, { Sequence: { id: 'A', type_id: 0 } }],
  pair: [{ Sequence: { id: 'A', type_id: 0 } }, { Sequence: { id: 'B', type_id: 1 } }],
  special_tokens: { '<s>': { id: '<s>', ids: [1], tokens: ['<s>'] } },
}

const numbered = (tokens: readonly string[]): { [token: string]: number } =>
  Object.fromEntries(tokens.map((t, i) => [t, i]))
const bytes = Array.from({ length: 256 }, (_, b) => `<0x${b.toString(16).toUpperCase().padStart(2, '0')}>`)

export const TOKENIZERS: readonly JsonValue[] = [
  {
    version: '1.0',
    added_tokens: added,
    normalizer: null,
    pre_tokenizer: { type: 'ByteLevel', add_prefix_space: false, trim_offsets: true, use_regex: true },
    post_processor: template,
    decoder: { type: 'ByteLevel', add_prefix_space: true, trim_offsets: true, use_regex: true },
    model: {
      type: 'BPE',
      vocab: numbered(['<unk>', '<s>', '</s>', ...'abcdefghijklmnopqrstuvwxyzĠÃ©ð', 'he', 'll', 'hell', 'hello']),
      merges: ['h e', 'l l', 'he ll', 'hell o'],
      byte_fallback: false,
    },
  },
  {
    version: '1.0',
    added_tokens: added,
    normalizer: {
      type: 'Sequence',
      normalizers: [
        { type: 'Prepend', prepend: '▁' },
        { type: 'Replace', pattern: { String: ' ' }, content: '▁' },
      ],
    },
    pre_tokenizer: null,
    post_processor: template,
    decoder: {
      type: 'Sequence',
      decoders: [
        { type: 'Replace', pattern: { String: '▁' }, content: ' ' },
        { type: 'ByteFallback' },
        { type: 'Fuse' },
        { type: 'Strip', content: ' ', start: 1, stop: 0 },
      ],
    },
    model: {
      type: 'BPE',
      vocab: numbered(['<unk>', '<s>', '</s>', ...bytes, ...'helo▁wrd', '▁h', 'el']),
      merges: [
        ['▁', 'h'],
        ['e', 'l'],
      ],
      unk_token: '<unk>',
      fuse_unk: true,
      byte_fallback: true,
    },
  },
  {
    version: '1.0',
    added_tokens: added,
    normalizer: { type: 'NFKC' },
    pre_tokenizer: { type: 'Metaspace', replacement: '▁', prepend_scheme: 'always', split: true },
    post_processor: template,
    decoder: { type: 'Metaspace', replacement: '▁', prepend_scheme: 'always', split: true },
    model: {
      type: 'Unigram',
      unk_id: 0,
      vocab: [
        ['<unk>', 0],
        ['<s>', 0],
        ['</s>', 0],
        ['▁', -2],
        ['hel', -3],
        ['lo', -3],
        ['l', -5],
        ['o', -5],
        ['▁w', -4],
      ],
    },
  },
  {
    version: '1.0',
    added_tokens: added,
    normalizer: {
      type: 'BertNormalizer',
      clean_text: true,
      handle_chinese_chars: true,
      strip_accents: null,
      lowercase: true,
    },
    pre_tokenizer: {
      type: 'Sequence',
      pretokenizers: [
        { type: 'BertPreTokenizer' },
        { type: 'Split', pattern: { Regex: '[0-9]' }, behavior: 'Isolated', invert: false },
      ],
    },
    post_processor: null,
    decoder: { type: 'WordPiece', prefix: '##', cleanup: true },
    model: {
      type: 'WordPiece',
      vocab: numbered(['<unk>', '<s>', '</s>', 'hel', '##lo', 'w', '##o', '##r', '##ld']),
      unk_token: '<unk>',
      continuing_subword_prefix: '##',
      max_input_chars_per_word: 100,
    },
  },
]

export const TOKENIZER_CONFIG: JsonValue = {
  bos_token: '<s>',
  eos_token: { content: '</s>' },
  unk_token: '<unk>',
  add_bos_token: true,
  added_tokens_decoder: { '2': { content: '</s>', special: true } },
  chat_template:
    "{{ bos_token }}{% for m in messages %}{{ m['role'] }}: {{ m['content'] | trim }}\n{% endfor %}{% if add_generation_prompt %}>{% endif %}",
}
