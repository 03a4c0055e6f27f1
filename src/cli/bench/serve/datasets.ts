// Prompts to send, with vLLM's dataset names: random, prefix_repetition, custom. Seeded: the same flags give the same
// prompts. Random prompts are token ids where the server says how large its vocabulary is, else words of about a token.
import { readFileSync } from 'node:fs'
import { CounterRandom, STREAM } from '../../../runtime/random.js'
import { BenchError } from './errors.js'

export interface BenchPrompt {
  readonly prompt: string | readonly number[]
  /** Tokens asked for. */
  readonly outputTokens: number
}

export interface DatasetOptions {
  readonly datasetName: 'random' | 'prefix_repetition' | 'custom'
  readonly datasetPath: string | null
  readonly numPrompts: number
  readonly seed: number
  readonly randomInputLen: number
  readonly randomOutputLen: number
  /** Lengths are drawn from [length x (1 - ratio), length x (1 + ratio)]. */
  readonly randomRangeRatio: number
  readonly randomPrefixLen: number
  readonly prefixRepetitionPrefixLen: number
  readonly prefixRepetitionSuffixLen: number
  readonly prefixRepetitionNumPrefixes: number
  readonly prefixRepetitionOutputLen: number
  readonly customOutputLen: number
}

/** A run of `count` random tokens. */
type Run = (count: number) => string | readonly number[]

const CONSONANTS = 'bcdfghklmnprstvz'
const VOWELS = 'aeiou'

function runs(random: CounterRandom, vocabSize: number | null): Run {
  if (vocabSize !== null) return count => Array.from({ length: count }, () => random.below(vocabSize))
  const letter = (letters: string) => letters[random.below(letters.length)]!
  return count => Array.from({ length: count }, () => letter(CONSONANTS) + letter(VOWELS)).join(' ')
}

const join = (a: string | readonly number[], b: string | readonly number[]): string | readonly number[] => {
  if (typeof a !== 'string' && typeof b !== 'string') return [...a, ...b]
  return [a, b].filter(part => part.length > 0).join(' ')
}

/** @param vocabSize of the server, or null: prompts are text then. @throws BenchError */
export function makePrompts(options: DatasetOptions, vocabSize: number | null): readonly BenchPrompt[] {
  const random = new CounterRandom(options.seed, STREAM.benchmark)
  const run = runs(random, vocabSize)
  const { numPrompts } = options
  if (options.datasetName === 'custom') return customPrompts(options, random)
  if (options.datasetName === 'prefix_repetition') {
    const prefixes = Array.from({ length: options.prefixRepetitionNumPrefixes }, () =>
      run(options.prefixRepetitionPrefixLen),
    )
    const prompts = Array.from({ length: numPrompts }, (_, i) => ({
      prompt: join(prefixes[i % prefixes.length]!, run(options.prefixRepetitionSuffixLen)),
      outputTokens: options.prefixRepetitionOutputLen,
    }))
    return shuffled(prompts, random)
  }
  const drawn = (length: number): number => {
    const low = Math.max(1, Math.floor(length * (1 - options.randomRangeRatio)))
    const high = Math.max(low, Math.ceil(length * (1 + options.randomRangeRatio)))
    return low + random.below(high - low + 1)
  }
  const prefix = run(options.randomPrefixLen)
  return Array.from({ length: numPrompts }, () => ({
    prompt: join(prefix, run(drawn(options.randomInputLen))),
    outputTokens: drawn(options.randomOutputLen),
  }))
}

function shuffled<T>(items: T[], random: CounterRandom): T[] {
  for (let i = items.length - 1; i > 0; i--) {
    const j = random.below(i + 1)
    const kept = items[i]!
    items[i] = items[j]!
    items[j] = kept
  }
  return items
}

/** JSON lines {"prompt": "…", "output_tokens": n?}, taken again from the beginning when there are fewer than asked for. */
function customPrompts({ datasetPath, numPrompts, customOutputLen }: DatasetOptions, random: CounterRandom) {
  if (datasetPath === null) throw new BenchError('SY_BENCH_NO_DATASET')
  let text: string
  try {
    text = readFileSync(datasetPath, 'utf8')
  } catch (error) {
    throw new BenchError('SY_BENCH_BAD_DATASET', { file: datasetPath, problem: (error as Error).message })
  }
  const prompts: BenchPrompt[] = []
  text.split('\n').forEach((line, i) => {
    if (line.trim() === '') return
    const bad = (problem: string) =>
      new BenchError('SY_BENCH_BAD_DATASET', { file: datasetPath, problem: `line ${i + 1} ${problem}` })
    let entry: { prompt?: unknown; output_tokens?: unknown }
    try {
      entry = JSON.parse(line) as typeof entry
    } catch {
      throw bad('is not JSON')
    }
    if (typeof entry?.prompt !== 'string' || entry.prompt === '') throw bad('has no text under "prompt"')
    const tokens = entry.output_tokens ?? customOutputLen
    if (!Number.isSafeInteger(tokens) || (tokens as number) < 1) throw bad('has an "output_tokens" that is no count')
    prompts.push({ prompt: entry.prompt, outputTokens: tokens as number })
  })
  if (prompts.length === 0) throw new BenchError('SY_BENCH_BAD_DATASET', { file: datasetPath, problem: 'it is empty' })
  const order = shuffled([...prompts.keys()], random)
  return Array.from({ length: numPrompts }, (_, i) => prompts[order[i % order.length]!]!)
}
