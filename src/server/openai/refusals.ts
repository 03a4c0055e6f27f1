// Fields of OpenAI's, vLLM's and SGLang's APIs that Switchyard knows and cannot honour yet. A value that asks for
// nothing (n: 1, penalties of 0 …) passes; any other is refused by name, so that no client believes it was obeyed.
import { HttpError } from '../errors.js'

type Neutral = (value: unknown) => boolean

const never: Neutral = () => false
const is =
  (...values: readonly unknown[]): Neutral =>
  value =>
    values.includes(value)
const empty: Neutral = value =>
  value === false || value === '' || (typeof value === 'object' && value !== null && Object.keys(value).length === 0)
const textFormat: Neutral = value => (value as { type?: unknown } | null)?.type === 'text'
const textOnly: Neutral = value => Array.isArray(value) && value.length === 1 && value[0] === 'text'

const LATER = 'this version does not have it yet'

const COMMON: Readonly<Record<string, readonly [Neutral, string]>> = {
  best_of: [is(1), 'every choice that is made is returned; ask for them with n'],
  prompt_logprobs: [
    never,
    'log-probabilities of a prompt come with echo and logprobs of /v1/completions, or from /generate',
  ],
  return_prompt_logprobs: [is(false), 'log-probabilities of a prompt come from /generate'],
  length_penalty: [is(1), LATER],
  use_beam_search: [is(false), LATER],
  logits_processors: [empty, LATER],
  custom_logit_processor: [empty, LATER],
  skip_special_tokens: [is(true), 'special tokens are never part of the text'],
  include_stop_str_in_output: [is(false), 'the stop text is never part of the output'],
  no_stop_trim: [is(false), 'the stop text is never part of the output'],
  bad_words: [empty, LATER],
  allowed_token_ids: [empty, LATER],
  response_format: [textFormat, 'only text comes out, no constrained JSON yet'],
  regex: [empty, LATER],
  ebnf: [empty, LATER],
  json_schema: [empty, LATER],
  structural_tag: [empty, LATER],
  structured_outputs: [empty, LATER],
  guided_json: [empty, LATER],
  guided_regex: [empty, LATER],
  guided_choice: [empty, LATER],
  guided_grammar: [empty, LATER],
  return_hidden_states: [is(false), LATER],
  lora_path: [empty, 'adapters are not read'],
  prompt_embeds: [empty, 'prompts are text or token ids'],
}

const COMPLETION: Readonly<Record<string, readonly [Neutral, string]>> = {
  ...COMMON,
  suffix: [empty, 'text is only continued, never filled in'],
  top_logprobs: [is(0), 'the number of alternatives is the value of logprobs'],
}

const CHAT: Readonly<Record<string, readonly [Neutral, string]>> = {
  ...COMMON,
  tools: [empty, 'tools cannot be called yet'],
  tool_choice: [is('none', 'auto'), 'tools cannot be called yet'],
  functions: [empty, 'functions cannot be called yet'],
  function_call: [is('none', 'auto'), 'functions cannot be called yet'],
  modalities: [textOnly, 'only text comes out'],
  audio: [never, 'only text comes out'],
  prediction: [never, LATER],
  web_search_options: [never, 'there is no web search'],
  echo: [is(false), 'a chat answers, it does not repeat; /v1/completions has echo'],
  chat_template: [never, "the model's own chat template is used"],
  continue_final_message: [is(false), LATER],
  documents: [empty, LATER],
}

/** Fields that change nothing here: for the provider's books, or hints we are free to ignore. */
export const INERT_FIELDS: ReadonlySet<string> = new Set([
  'user',
  'metadata',
  'store',
  'service_tier',
  'safety_identifier',
  'prompt_cache_key',
  'prompt_cache_retention',
  'parallel_tool_calls',
  'reasoning_effort',
  'verbosity',
  'separate_reasoning',
  'stream_reasoning',
  'truncate_prompt_tokens',
  'spaces_between_special_tokens',
  'request_id',
  'rid',
])

export const REFUSED_FIELDS = { completion: COMPLETION, chat: CHAT } as const

/** @throws HttpError with `param` for the first field of `body` that asks for something Switchyard cannot do */
export function refuseUnsupported(body: Readonly<Record<string, unknown>>, kind: keyof typeof REFUSED_FIELDS): void {
  const table = REFUSED_FIELDS[kind]
  for (const [param, value] of Object.entries(body)) {
    const entry = Object.hasOwn(table, param) ? table[param] : undefined
    if (entry !== undefined && !entry[0](value)) {
      throw new HttpError('SY_HTTP_UNSUPPORTED_FIELD', { param, reason: entry[1] })
    }
  }
}
