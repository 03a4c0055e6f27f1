// --prompt and --input-ids, shared by generate and logits: text through the tokenizer, or token ids as they are.
import { type Command, Option } from 'commander'
import { ConfigError } from '../config/config-errors.js'
import type { GenerationEngine } from '../engine/request.js'

export const addPromptOptions = (command: Command): Command =>
  command
    .addOption(new Option('--prompt <text>', 'the prompt as text').helpGroup('Prompt:'))
    .addOption(new Option('--input-ids <ids>', 'the prompt as token ids: 1,2,3').helpGroup('Prompt:'))

export interface PromptChoice {
  readonly prompt: string | null
  readonly inputIds: readonly number[] | null
}

/** Checked before the model loads. Exactly one of the two. @throws ConfigError */
export function takePrompt(command: string, options: Readonly<Record<string, unknown>>): PromptChoice {
  const prompt = options['prompt'] as string | undefined
  const ids = options['inputIds'] as string | undefined
  if (prompt !== undefined && ids !== undefined) {
    throw new ConfigError('SY_CONFIG_CONFLICT', { first: '--prompt', second: '--input-ids' })
  }
  if (prompt === undefined && ids === undefined) {
    throw new ConfigError('SY_CONFIG_MISSING_ARGUMENT', {
      command,
      argument: 'a prompt',
      example: 'give it one with --prompt "text" or --input-ids 1,2,3',
    })
  }
  return { prompt: prompt ?? null, inputIds: ids === undefined ? null : parseIds(ids) }
}

function parseIds(text: string): readonly number[] {
  // An empty part between two commas is an id that got lost, so it is refused.
  const ids = text
    .trim()
    .split(/\s*,\s*|\s+/)
    .map(part => (/^\d+$/.test(part) ? Number(part) : Number.NaN))
  if (ids.every(id => Number.isSafeInteger(id))) return ids
  throw new ConfigError('SY_CONFIG_BAD_VALUE', {
    flag: '--input-ids',
    value: JSON.stringify(text.slice(0, 60)),
    expected: 'token ids with commas between them, such as 1,2,3',
    suggestion: '',
  })
}

/** @throws ConfigError when text meets a model without a tokenizer */
export function promptIds(engine: GenerationEngine, { prompt, inputIds }: PromptChoice): readonly number[] {
  if (inputIds !== null) return inputIds
  if (engine.tokenizer === null) throw new ConfigError('SY_CONFIG_NO_TOKENIZER', { model: engine.modelName })
  return engine.tokenizer.encode(prompt ?? '', { addSpecialTokens: true })
}
