// The demo's tokenizer against its reference; streams of text against whole decodings; chat templates; stop texts.
import { cpSync, mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { Tokenizer as CoreTokenizer } from '@huggingface/tokenizers'
import fc from 'fast-check'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import type { TextTokenizer } from '../../engine/request.js'
import { IncrementalDetokenizer, loadTokenizer, StopMatcher, type Tokenizer, TokenizerError } from './index.js'
import { strftime } from './strftime.js'

let root: string
let demo: Tokenizer
beforeAll(() => {
  root = mkdtempSync(join(tmpdir(), 'sy-tokenizer-'))
  demo = loadTokenizer('models/demo')!
})
afterAll(() => rmSync(root, { recursive: true, force: true }))

let serial = 0
function dirWith(files: Record<string, unknown>, base?: string): string {
  const dir = join(root, `d${serial++}`)
  mkdirSync(dir)
  if (base) for (const name of ['tokenizer.json', 'tokenizer_config.json']) cpSync(join(base, name), join(dir, name))
  for (const [name, value] of Object.entries(files))
    writeFileSync(join(dir, name), typeof value === 'string' ? value : JSON.stringify(value))
  return dir
}

function refusal(run: () => unknown): TokenizerError {
  try {
    run()
  } catch (error) {
    expect(error).toBeInstanceOf(TokenizerError)
    return error as TokenizerError
  }
  throw new Error('nothing was refused')
}

const joined = (tokenizer: Tokenizer, ids: readonly number[], skipSpecialTokens = false): string => {
  const stream = new IncrementalDetokenizer(tokenizer, { skipSpecialTokens })
  return ids.map(id => stream.push(id)).join('') + stream.flush()
}

/** A half character: a lone surrogate or a replacement character. */
const half = /[\uD800-\uDBFF](?![\uDC00-\uDFFF])|(?<![\uD800-\uDBFF])[\uDC00-\uDFFF]|\uFFFD/

describe('the demo tokenizer', () => {
  interface Reference {
    prompt: string
    ids: number[]
    greedy: number[]
    text: string
  }
  const references = JSON.parse(readFileSync('models/demo/reference.json', 'utf8')) as Reference[]

  it('encodes the reference prompts and decodes the reference texts', () => {
    expect(references.length).toBeGreaterThan(2)
    for (const { prompt, ids, greedy, text } of references) {
      expect(demo.encode(prompt, { addSpecialTokens: true })).toEqual(ids)
      expect(demo.encode(prompt)).toEqual(ids)
      expect(demo.encode(prompt, { addSpecialTokens: false })).toEqual(ids.slice(1))
      expect(demo.decode(ids, { skipSpecialTokens: true })).toBe(prompt)
      expect(demo.decode(greedy, { skipSpecialTokens: true })).toBe(text)
    }
  })

  it('is what the engine and server ask for', () => {
    const asText: TextTokenizer = demo
    expect(asText.hasChatTemplate).toBe(true)
    expect(demo.vocabSize).toBe(8192)
    expect([demo.bosToken, demo.eosToken, demo.idOf('<|end_of_text|>')]).toEqual([
      '<|begin_of_text|>',
      '<|end_of_text|>',
      1,
    ])
  })

  it('decodes nothing, unknown ids and special tokens', () => {
    expect(demo.decode([])).toBe('')
    expect(demo.decode([99_999, -1, 1.5])).toBe('')
    expect(demo.decode([0, 1])).toBe('<|begin_of_text|><|end_of_text|>')
    expect(demo.decode([0, 1], { skipSpecialTokens: true })).toBe('')
  })

  it('property: increments joined are the whole decoding, which is that of the tokenizers library', () => {
    const json = JSON.parse(readFileSync('models/demo/tokenizer.json', 'utf8')) as Record<string, unknown>
    const core = new CoreTokenizer(json, { clean_up_tokenization_spaces: false })
    const ids = fc.array(fc.integer({ min: 0, max: 8191 }), { minLength: 1, maxLength: 40 })
    fc.assert(
      fc.property(ids, fc.boolean(), (list, skip) => {
        const whole = demo.decode(list, { skipSpecialTokens: skip })
        expect(joined(demo, list, skip)).toBe(whole)
        if (!skip || list.some(id => id > 2)) expect(whole).toBe(core.decode(list, { skip_special_tokens: skip }))
      }),
      { numRuns: 500, seed: 2 },
    )
  })

  it('property: a text streams back without half characters', () => {
    fc.assert(
      fc.property(fc.string({ unit: 'grapheme', maxLength: 30 }), text => {
        fc.pre(!text.includes('<|') && !half.test(text))
        const stream = new IncrementalDetokenizer(demo)
        let all = ''
        for (const id of demo.encode(text, { addSpecialTokens: false })) {
          const piece = stream.push(id)
          expect(piece).not.toMatch(half)
          all += piece
        }
        expect(stream.flush()).toBe('')
        expect(all).toBe(text)
      }),
      { numRuns: 300, seed: 3 },
    )
  })

  it('holds an emoji back until it is whole, and shows what is left of it at the end', () => {
    const ids = demo.encode('🎉', { addSpecialTokens: false })
    expect(ids.length).toBeGreaterThan(1)
    const stream = new IncrementalDetokenizer(demo)
    const pieces = ids.map(id => stream.push(id))
    expect(pieces.slice(0, -1).join('')).toBe('')
    expect(pieces.at(-1)).toBe('🎉')
    const cut = new IncrementalDetokenizer(demo)
    expect(cut.push(ids[0]!)).toBe('')
    expect(cut.flush()).toBe('\uFFFD')
  })
})

describe('other vocabularies', () => {
  const bytes = Array.from({ length: 256 }, (_, b) => `<0x${b.toString(16).toUpperCase().padStart(2, '0')}>`)
  const words = ['<unk>', '<s>', '</s>', '▁', '▁Hello', '▁world', 'lo', 'é', '▁▁', ',']
  const vocab = Object.fromEntries([...words, ...bytes].map((token, id) => [token, id]))
  const sentencePiece = (decoder: unknown): Record<string, unknown> => ({
    version: '1.0',
    added_tokens: [0, 1, 2].map(id => ({ id, content: words[id], special: true, normalized: false })),
    normalizer: {
      type: 'Sequence',
      normalizers: [
        { type: 'Prepend', prepend: '▁' },
        { type: 'Replace', pattern: { String: ' ' }, content: '▁' },
      ],
    },
    pre_tokenizer: null,
    post_processor: null,
    decoder,
    model: { type: 'BPE', vocab, merges: [], byte_fallback: true, unk_token: '<unk>', fuse_unk: true },
  })
  const llama = {
    type: 'Sequence',
    decoders: [
      { type: 'Replace', pattern: { String: '▁' }, content: ' ' },
      { type: 'ByteFallback' },
      { type: 'Fuse' },
      { type: 'Strip', content: ' ', start: 1, stop: 0 },
    ],
  }
  const metaspace = { type: 'Metaspace', replacement: '▁', prepend_scheme: 'always', split: true }
  const id = (token: string): number => vocab[token]!

  it('byte fallback: bytes of one character arrive together, one leading space goes', () => {
    const tokenizer = loadTokenizer(dirWith({ 'tokenizer.json': sentencePiece(llama) }))!
    const euro = ['<0xE2>', '<0x82>', '<0xAC>'].map(id)
    const stream = new IncrementalDetokenizer(tokenizer)
    const ids = [id('▁Hello'), ...euro, id('▁world')]
    expect(ids.map(i => stream.push(i))).toEqual(['Hello', '', '', '€', ' world'])
    expect(stream.flush()).toBe('')
    expect(tokenizer.decode([id('▁▁'), id('lo')])).toBe(' lo')
  })

  it.each<[string, unknown]>([
    ['byte fallback', llama],
    ['metaspace', metaspace],
    ['a decoder compared by window', { type: 'WordPiece', prefix: '##', cleanup: false }],
  ])('property: %s, increments joined are the whole decoding of the library', (_, decoder) => {
    const json = sentencePiece(decoder)
    const tokenizer = loadTokenizer(dirWith({ 'tokenizer.json': json }))!
    const core = new CoreTokenizer(json, { clean_up_tokenization_spaces: false })
    fc.assert(
      fc.property(fc.array(fc.nat(words.length + 255), { minLength: 1, maxLength: 12 }), list => {
        const whole = tokenizer.decode(list)
        expect(joined(tokenizer, list)).toBe(whole)
        expect(whole).toBe(core.decode(list))
      }),
      { numRuns: 300, seed: 4 },
    )
  })

  it('a BOM written by the model stays', () => {
    const tokenizer = loadTokenizer(dirWith({ 'tokenizer.json': sentencePiece(llama) }))!
    expect(tokenizer.decode(['<0xEF>', '<0xBB>', '<0xBF>'].map(id))).toBe('\uFEFF')
  })

  it('add_bos_token and add_eos_token replace the post-processor; without them it decides', () => {
    const special = { bos_token: { content: '<s>' }, eos_token: '</s>' }
    const post = {
      type: 'TemplateProcessing',
      single: [{ SpecialToken: { id: '<s>', type_id: 0 } }, { Sequence: { id: 'A', type_id: 0 } }],
      pair: [],
      special_tokens: {},
    }
    const ids = (config: unknown, processor: unknown): number[] =>
      loadTokenizer(
        dirWith({
          'tokenizer.json': { ...sentencePiece(llama), post_processor: processor },
          'tokenizer_config.json': config,
        }),
      )!.encode('lo', { addSpecialTokens: true })
    const plain = ids(special, null)
    expect(plain).not.toContain(1)
    expect(ids(special, post)).toEqual([1, ...plain])
    expect(ids({ ...special, add_bos_token: false }, post)).toEqual(plain)
    expect(ids({ ...special, add_bos_token: true, add_eos_token: true }, post)).toEqual([1, ...plain, 2])
  })
})

describe('broken files', () => {
  it('no tokenizer.json is no tokenizer', () => {
    expect(loadTokenizer(dirWith({}))).toBeNull()
  })

  it.each<[string, unknown, RegExp]>([
    ['invalid JSON', '{', /invalid JSON/],
    ['a list', [], /a list of 0/],
    ['no model', {}, /model as an object/],
    ['no vocabulary', { model: { type: 'BPE' } }, /model\.vocab/],
    ['an absurd id', { model: { type: 'BPE', vocab: { a: 4e9 }, merges: [] } }, /a: 4000000000/],
    [
      'an absurd added id',
      { model: { type: 'BPE', vocab: { a: 0 }, merges: [] }, added_tokens: [{ id: -1, content: 'b' }] },
      /added_tokens/,
    ],
    ['an unknown model', { model: { type: 'Telepathy', vocab: { a: 0 } } }, /model\.type/],
    [
      'an unknown decoder',
      { model: { type: 'BPE', vocab: { a: 0 }, merges: [] }, decoder: { type: 'X' } },
      /Unknown Decoder/,
    ],
  ])('%s', (_, json, message) => {
    const dir = dirWith({ 'tokenizer.json': json })
    const error = refusal(() => loadTokenizer(dir))
    expect(error.message).toMatch(message)
    expect(error.message).toContain(join(dir, 'tokenizer.json'))
  })

  it('names a broken tokenizer_config.json', () => {
    expect(refusal(() => loadTokenizer(dirWith({ 'tokenizer_config.json': 'x' }, 'models/demo'))).message).toMatch(
      /tokenizer_config\.json/,
    )
  })
})

describe('chat templates', () => {
  const hello = [{ role: 'user', content: 'Hello' }]
  const withTemplate = (template: unknown, extra: Record<string, unknown> = {}): Tokenizer =>
    loadTokenizer(
      dirWith(
        { 'tokenizer_config.json': { bos_token: '<|begin_of_text|>', chat_template: template, ...extra } },
        'models/demo',
      ),
    )!

  it('renders the demo template; chat adds no second bos', () => {
    const text = demo.applyChatTemplate([...hello, { role: 'assistant', content: 'Hi' }])
    expect(text).toBe('<|begin_of_text|>Hello\nHi') // the first line break after a block goes, as in Hugging Face
    expect(demo.encode(text, { addSpecialTokens: false }).filter(id => id === 0)).toHaveLength(1)
  })

  it('knows the generation prompt, options, tools and the date', () => {
    const template = withTemplate(
      "{% if add_generation_prompt %}go{% endif %}{% if thinking %} think{% endif %}{% if tools is not none %} tools{% endif %}{{ strftime_now('%Y') }}",
    )
    expect(template.applyChatTemplate(hello)).toMatch(/^go\d{4}$/)
    expect(template.applyChatTemplate(hello, { add_generation_prompt: false, thinking: true, tools: [] })).toMatch(
      /^ think tools\d{4}$/,
    )
  })

  it('takes chat_template.jinja first, and the named template that fits', () => {
    const file = loadTokenizer(dirWith({ 'chat_template.jinja': 'from file' }, 'models/demo'))!
    expect(file.applyChatTemplate(hello)).toBe('from file')
    const named = withTemplate([
      { name: 'default', template: 'plain' },
      { name: 'tool_use', template: 'with tools' },
    ])
    expect(named.applyChatTemplate(hello)).toBe('plain')
    expect(named.applyChatTemplate(hello, { tools: [{}] })).toBe('with tools')
  })

  it.each<[string, unknown, string, RegExp]>([
    [
      'raise_exception',
      "{{ raise_exception('roles must alternate') }}",
      'SY_TOKENIZER_CHAT_REFUSED',
      /roles must alternate/,
    ],
    ['a syntax error', '{% if %}', 'SY_TOKENIZER_CHAT_TEMPLATE', /could not be rendered/],
    ['a missing function', '{{ nothing() }}', 'SY_TOKENIZER_CHAT_TEMPLATE', /could not be rendered/],
    ['an endless range', '{% for i in range(1000000000000) %}x{% endfor %}', 'SY_TOKENIZER_CHAT_TEMPLATE', /too long/],
  ])('%s is a named error', (_, template, code, message) => {
    const error = refusal(() => withTemplate(template).applyChatTemplate(hello))
    expect([error.code, error.status]).toEqual([code, 400])
    expect(error.message).toMatch(message)
  })

  it('says when there is none, and refuses a template that is a number', () => {
    const none = withTemplate(null)
    expect(none.hasChatTemplate).toBe(false)
    expect(refusal(() => none.applyChatTemplate(hello)).code).toBe('SY_TOKENIZER_NO_CHAT_TEMPLATE')
    expect(refusal(() => withTemplate(5)).message).toMatch(/chat_template as text/)
  })

  it('strftime', () => {
    const date = new Date(2026, 2, 5, 15, 4, 9)
    expect(strftime(date, '%d %b %Y, %A %B %-d %H:%M:%S %I%p %j %y %% %Q')).toBe(
      '05 Mar 2026, Thursday March 5 15:04:09 03PM 064 26 % %Q',
    )
  })
})

describe('stop texts', () => {
  /** Character by character: the first character at which some stop is complete. */
  function reference(text: string, stops: readonly string[]): { text: string; stop: boolean } {
    for (let end = 1; end <= text.length; end++) {
      const done = stops
        .filter(stop => stop !== '' && text.slice(0, end).endsWith(stop))
        .sort((a, b) => b.length - a.length)
      if (done.length > 0) return { text: text.slice(0, end - done[0]!.length), stop: true }
    }
    return { text, stop: false }
  }

  it('property: the cut of the pieces does not matter, and nothing of a stop text is shown', () => {
    const letters = fc.string({ unit: fc.constantFrom('a', 'b', 'c'), maxLength: 4 })
    fc.assert(
      fc.property(fc.array(letters, { maxLength: 8 }), fc.array(letters, { maxLength: 3 }), (pieces, stops) => {
        const matcher = new StopMatcher(stops)
        let shown = ''
        let stopped = false
        for (const piece of pieces) {
          const match = matcher.push(piece)
          shown += match.text
          stopped = match.stopped
          expect(match.stopped).toBe(match.stop !== null)
          if (stopped) break
        }
        if (!stopped) shown += matcher.flush()
        expect({ text: shown, stop: stopped }).toEqual(reference(pieces.join(''), stops))
      }),
      { numRuns: 2000, seed: 6 },
    )
  })

  it('holds back only what may become a stop', () => {
    const matcher = new StopMatcher(['\n\n', 'END'])
    expect(matcher.push('one\n').text).toBe('one')
    expect(matcher.push('two E').text).toBe('\ntwo ')
    expect(matcher.push('N').text).toBe('')
    expect(matcher.push('D!')).toEqual({ text: '', stop: 'END', stopped: true })
  })
})
