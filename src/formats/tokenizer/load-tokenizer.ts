// Reads tokenizer.json, tokenizer_config.json and the chat template of a checkpoint directory.
// Invariant: whatever is in those files, the result is a tokenizer or a TokenizerError naming the file. A directory without
// tokenizer.json has no tokenizer (null), which is not an error: such models take token ids.
import { join } from 'node:path'
import { Tokenizer as CoreTokenizer } from '@huggingface/tokenizers'
import { describeJson, isJsonObject, type JsonObject, readJsonObject, readText } from '../json-file.js'
import { ChatTemplate, type NamedTemplate } from './chat-template.js'
import { Tokenizer } from './text-tokenizer.js'
import { pieceRules } from './token-pieces.js'
import { TokenizerError } from './tokenizer-errors.js'

const MAX_TOKENIZER_BYTES = 256 * 1024 * 1024
const MAX_CONFIG_BYTES = 64 * 1024 * 1024
const MAX_ID = 1 << 24
/** undefined: older files name no type, the library tells them apart. */
const MODELS: readonly unknown[] = ['BPE', 'Unigram', 'WordPiece', undefined]
const SPECIAL_NAMES = ['bos_token', 'eos_token', 'unk_token', 'pad_token', 'sep_token', 'cls_token', 'mask_token']

/** @returns null when `dir` has no tokenizer.json. @throws TokenizerError */
export function loadTokenizer(dir: string): Tokenizer | null {
  const file = join(dir, 'tokenizer.json')
  const json = readJsonObject(file, MAX_TOKENIZER_BYTES)
  if (!json.ok) {
    if (json.missing) return null
    throw new TokenizerError('SY_TOKENIZER_UNREADABLE', { file, expected: 'a JSON object', found: json.found })
  }
  const config = { ...optionalObject(dir, 'special_tokens_map.json'), ...optionalObject(dir, 'tokenizer_config.json') }
  const described = withConfigTokens(file, json.value, config)
  const vocabSize = checkIds(file, described)
  const core = build(file, described, config)

  const special = Object.fromEntries(
    SPECIAL_NAMES.flatMap(name => {
      const content = tokenContent(config[name])
      return content === null ? [] : [[name, content]]
    }),
  )
  const bosToken = special['bos_token'] ?? null
  const eosToken = special['eos_token'] ?? null
  const specialIds = new Set<number>()
  for (const token of described['added_tokens'] as JsonObject[])
    if (token['special'] === true) specialIds.add(token['id'] as number)
  for (const content of Object.values(special)) {
    const id = core.token_to_id(content)
    if (id !== undefined) specialIds.add(id)
  }
  return new Tokenizer({
    core,
    rules: pieceRules(described['decoder']),
    chat: loadChatTemplate(dir, config, special),
    specialIds,
    affixes: readAffixes(core, described, config, bosToken, eosToken),
    vocabSize,
    eosToken,
    bosToken,
  })
}

function optionalObject(dir: string, name: string): JsonObject {
  const file = join(dir, name)
  const json = readJsonObject(file, MAX_CONFIG_BYTES)
  if (json.ok) return json.value
  if (json.missing) return {}
  throw new TokenizerError('SY_TOKENIZER_UNREADABLE', { file, expected: 'a JSON object', found: json.found })
}

/** tokenizer_config.json may name added tokens that tokenizer.json lacks. */
function withConfigTokens(file: string, json: JsonObject, config: JsonObject): JsonObject {
  const added = json['added_tokens'] ?? []
  if (!Array.isArray(added) || !added.every(isJsonObject))
    throw new TokenizerError('SY_TOKENIZER_UNREADABLE', {
      file,
      expected: 'added_tokens as a list of objects',
      found: describeJson(added),
    })
  const extra: JsonObject[] = []
  const decoder = config['added_tokens_decoder']
  if (isJsonObject(decoder)) {
    const contents = new Set(added.map(token => token['content']))
    for (const [id, token] of Object.entries(decoder))
      if (isJsonObject(token) && typeof token['content'] === 'string' && !contents.has(token['content']))
        extra.push({ ...token, id: Number(id) })
  }
  const nullable = { decoder: null, post_processor: null, pre_tokenizer: null, normalizer: null }
  return { ...nullable, ...json, added_tokens: [...added, ...extra] }
}

/** Ids are indices of an array in the library, so absurd ones are refused first. @returns one more than the largest id */
function checkIds(file: string, json: JsonObject): number {
  const refuse = (expected: string, found: unknown): never => {
    throw new TokenizerError('SY_TOKENIZER_UNREADABLE', { file, expected, found: describeJson(found) })
  }
  const isId = (id: unknown): id is number => Number.isSafeInteger(id) && (id as number) >= 0 && (id as number) < MAX_ID
  const { model } = json
  if (!isJsonObject(model)) return refuse('model as an object', model)
  if (!MODELS.includes(model['type'])) return refuse('model.type of BPE, Unigram or WordPiece', model['type'])
  const vocab = model['vocab']
  let largest = -1
  if (Array.isArray(vocab)) {
    const bad = vocab.find(item => !Array.isArray(item) || typeof item[0] !== 'string' || typeof item[1] !== 'number')
    if (bad !== undefined) return refuse('model.vocab as a list of [token, score]', bad)
    largest = vocab.length - 1
  } else if (isJsonObject(vocab)) {
    for (const [token, id] of Object.entries(vocab)) {
      if (!isId(id)) return refuse(`ids from 0 to ${MAX_ID - 1} in model.vocab`, `${token}: ${describeJson(id)}`)
      if (id > largest) largest = id
    }
  } else return refuse('model.vocab as an object or a list', vocab)
  for (const token of json['added_tokens'] as JsonObject[]) {
    if (typeof token['content'] !== 'string' || token['content'] === '')
      return refuse('added_tokens with content', token['content'])
    if (!isId(token['id'])) return refuse(`added_tokens with ids from 0 to ${MAX_ID - 1}`, token['id'])
    if (token['id'] > largest) largest = token['id']
  }
  return largest + 1
}

function build(file: string, json: JsonObject, config: JsonObject): CoreTokenizer {
  try {
    const core = new CoreTokenizer(json, { ...config, clean_up_tokenization_spaces: false })
    // A tokenizer that cannot encode or decode at all is found now, not at the first request.
    core.encode('a b', { add_special_tokens: true })
    if (core.id_to_token(0) !== undefined) core.decode([0])
    return core
  } catch (error) {
    throw new TokenizerError(
      'SY_TOKENIZER_UNREADABLE',
      {
        file,
        expected: 'a tokenizer',
        found: `one that fails with "${String((error as Error).message).slice(0, 200)}"`,
      },
      { cause: error },
    )
  }
}

/** A special token is written as text or as an object with its content. */
function tokenContent(value: unknown): string | null {
  if (typeof value === 'string') return value === '' ? null : value
  if (isJsonObject(value) && typeof value['content'] === 'string') return value['content']
  return null
}

/**
 * add_bos_token and add_eos_token, where tokenizer_config.json says either, replace the post-processor, as in Hugging Face
 * transformers 5; without them, and with a post-processor, that decides.
 */
function readAffixes(
  core: CoreTokenizer,
  json: JsonObject,
  config: JsonObject,
  bos: string | null,
  eos: string | null,
): { before: number[]; after: number[] } | null {
  const addBos = config['add_bos_token']
  const addEos = config['add_eos_token']
  if (typeof addBos !== 'boolean' && typeof addEos !== 'boolean' && json['post_processor'] !== null) return null
  const idOf = (wanted: unknown, token: string | null): number[] => {
    const id = wanted === true && token !== null ? core.token_to_id(token) : undefined
    return id === undefined ? [] : [id]
  }
  return { before: idOf(addBos, bos), after: idOf(addEos, eos) }
}

function loadChatTemplate(dir: string, config: JsonObject, special: Record<string, string>): ChatTemplate | null {
  const file = join(dir, 'chat_template.jinja')
  const text = readText(file, MAX_CONFIG_BYTES)
  if (typeof text === 'string') return new ChatTemplate(file, [{ name: 'default', source: text }], special)
  if (!text.missing)
    throw new TokenizerError('SY_TOKENIZER_UNREADABLE', { file, expected: 'a template', found: text.found })
  const configFile = join(dir, 'tokenizer_config.json')
  const value = config['chat_template']
  if (value === undefined || value === null || value === '') return null
  if (typeof value === 'string') return new ChatTemplate(configFile, [{ name: 'default', source: value }], special)
  const named: NamedTemplate[] = []
  if (Array.isArray(value))
    for (const item of value)
      if (isJsonObject(item) && typeof item['name'] === 'string' && typeof item['template'] === 'string')
        named.push({ name: item['name'], source: item['template'] })
  if (named.length === 0)
    throw new TokenizerError('SY_TOKENIZER_UNREADABLE', {
      file: configFile,
      expected: 'chat_template as text or as a list of {name, template}',
      found: describeJson(value),
    })
  return new ChatTemplate(configFile, named, special)
}
