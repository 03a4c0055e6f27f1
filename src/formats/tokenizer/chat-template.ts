// A model's chat template: Jinja with the names that Hugging Face gives it. It is parsed at its first use, so that a model
// with a broken one can still complete plain prompts. Invariant: every failure is a TokenizerError.
import { Environment, Interpreter, parse, tokenize } from '@huggingface/jinja'
import { SwitchyardError } from '../../config/errors.js'
import { strftime } from './strftime.js'
import { TokenizerError } from './tokenizer-errors.js'

type Program = ReturnType<typeof parse>

/** Longest range() a template may ask for: a list of so many is built at once. */
const MAX_RANGE = 100_000

export interface NamedTemplate {
  readonly name: string
  readonly source: string
}

export interface ChatMessageLike {
  readonly role: string
  readonly content: unknown
}

export class ChatTemplate {
  readonly #file: string
  readonly #templates: readonly NamedTemplate[]
  readonly #variables: Readonly<Record<string, unknown>>
  readonly #parsed = new Map<string, Program>()

  /** `variables`: bos_token, eos_token and the other special tokens by name. */
  constructor(file: string, templates: readonly NamedTemplate[], variables: Readonly<Record<string, unknown>>) {
    this.#file = file
    this.#templates = templates
    this.#variables = variables
  }

  /**
   * Renders `messages`. `options` become variables of the template (tools, enable_thinking …); add_generation_prompt is true
   * unless given, since the engine always answers. @throws TokenizerError
   */
  render(messages: readonly ChatMessageLike[], options: Readonly<Record<string, unknown>>, now: () => Date): string {
    const template = this.#choose(options)
    try {
      const environment = new Environment()
      for (const [name, value] of Object.entries(globals(now))) environment.set(name, value)
      const variables = {
        tools: null,
        documents: null,
        add_generation_prompt: true,
        ...this.#variables,
        ...options,
        messages,
      }
      for (const [name, value] of Object.entries(variables)) environment.set(name, value)
      const result = new Interpreter(environment).run(this.#program(template))
      const text: unknown = result.value
      return typeof text === 'string' ? text : String(text)
    } catch (error) {
      if (error instanceof SwitchyardError) throw error
      throw new TokenizerError(
        'SY_TOKENIZER_CHAT_TEMPLATE',
        { file: this.#file, found: String((error as Error).message).slice(0, 300) },
        { cause: error },
      )
    }
  }

  /** With several templates: tool_use when tools are given, else default. */
  #choose(options: Readonly<Record<string, unknown>>): NamedTemplate {
    const named = (name: string): NamedTemplate | undefined => this.#templates.find(t => t.name === name)
    const tools = options['tools']
    const wantsTools = Array.isArray(tools) && tools.length > 0
    return (wantsTools ? named('tool_use') : undefined) ?? named('default') ?? this.#templates[0]!
  }

  #program(template: NamedTemplate): Program {
    let program = this.#parsed.get(template.name)
    if (!program) {
      program = parse(tokenize(template.source, { lstrip_blocks: true, trim_blocks: true }))
      this.#parsed.set(template.name, program)
    }
    return program
  }
}

function globals(now: () => Date): Record<string, unknown> {
  return {
    true: true,
    false: false,
    none: null,
    True: true,
    False: false,
    None: null,
    raise_exception: (reason: unknown) => {
      throw new TokenizerError('SY_TOKENIZER_CHAT_REFUSED', { reason: String(reason).slice(0, 500) })
    },
    strftime_now: (format: unknown) => strftime(now(), String(format)),
    range,
  }
}

function range(first: number, second?: number, step = 1): number[] {
  const [start, stop] = second === undefined ? [0, first] : [first, second]
  const count = Math.ceil((stop - start) / step)
  if (!Number.isFinite(count) || count > MAX_RANGE) throw new Error(`range(${start}, ${stop}, ${step}) is too long`)
  return Array.from({ length: Math.max(0, count) }, (_, i) => start + i * step)
}
