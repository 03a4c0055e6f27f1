// 2,000 mutated files of four kinds, seeds fixed, and the committed corpus: each loads or is refused with an error of ours. A
// crash, a hang (the file's time limit) or memory by the gigabyte is a defect. Cases worth keeping go into corpus.json.
import { readdirSync, readFileSync, writeFileSync } from 'node:fs'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { type TensorToWrite, writeSafetensors } from '../../src/formats/safetensors/index.js'
import { CounterRandom } from '../../src/runtime/random.js'
import { FIXTURES, TestCheckpoints } from '../checkpoints.js'
import { type JsonValue, mutateBytes, mutateJson } from './mutate.js'
import { readConfig, readHeader, readIndex, readTokenizer } from './targets.js'
import { TOKENIZER_CONFIG, TOKENIZERS } from './tokenizers.js'

const CASES = 500

let made: TestCheckpoints
beforeAll(() => {
  made = new TestCheckpoints()
})
afterAll(() => made[Symbol.dispose]())

/** Runs `one` for each seed; names the seed of a defect; checks that both outcomes occur and memory stays small. */
function fuzz(stream: number, one: (random: CounterRandom) => string): void {
  const before = process.resourceUsage().maxRSS
  const outcomes = new Map<string, number>()
  for (let seed = 0; seed < CASES; seed++) {
    let outcome: string
    try {
      outcome = one(new CounterRandom(seed, stream))
    } catch (error) {
      throw new Error(`seed ${seed} of stream ${stream}`, { cause: error })
    }
    outcomes.set(outcome, (outcomes.get(outcome) ?? 0) + 1)
  }
  expect(outcomes.get('loads') ?? 0).toBeGreaterThan(0)
  expect(outcomes.size).toBeGreaterThan(2)
  expect(process.resourceUsage().maxRSS - before).toBeLessThan(700_000)
}

const smallFile = (dir: string): Uint8Array => {
  const tensor = (values: number[]): TensorToWrite => ({
    dtype: 'F32',
    shape: [values.length],
    data: Float32Array.from(values),
  })
  writeSafetensors(
    `${dir}/small.safetensors`,
    new Map([
      ['a.weight', tensor([1, 2])],
      ['b.weight', tensor([3])],
      ['c.bias', { dtype: 'BF16', shape: [2, 1], data: new Uint16Array(2) }],
    ]),
    { format: 'pt' },
  )
  return readFileSync(`${dir}/small.safetensors`)
}

describe('mutated files', () => {
  it('headers', () => {
    const dir = made.directory()
    const file = smallFile(dir)
    const fixture = readFileSync(`${FIXTURES}/gpt_oss/model.safetensors`).subarray(0, 20_000)
    fuzz(101, random => readHeader(dir, mutateBytes(random.below(4) === 0 ? fixture : file, random)))
  })

  it('configs', () => {
    const dir = made.directory()
    const names = readdirSync(FIXTURES)
    const texts = names.map(name => readFileSync(`${FIXTURES}/${name}/config.json`, 'utf8'))
    const generation = readFileSync('models/demo/generation_config.json', 'utf8')
    fuzz(102, random => {
      const text = texts[random.below(texts.length)]!
      const config = JSON.parse(text) as JsonValue
      if (random.below(8) === 0)
        return readConfig(dir, text, JSON.stringify(mutateJson(JSON.parse(generation) as JsonValue, random)))
      if (random.below(8) === 0)
        return readConfig(dir, new TextDecoder().decode(mutateBytes(Buffer.from(text), random)), generation)
      return readConfig(dir, JSON.stringify(mutateJson(config, random)), generation)
    })
  })

  it('index files', () => {
    const dir = made.derive('qwen2_moe', { shards: 2 })
    const text = readFileSync(`${dir}/model.safetensors.index.json`, 'utf8')
    fuzz(103, random => {
      if (random.below(2) === 0) return readIndex(dir, new TextDecoder().decode(mutateBytes(Buffer.from(text), random)))
      return readIndex(dir, JSON.stringify(mutateJson(JSON.parse(text) as JsonValue, random)))
    })
  })

  it('tokenizers', () => {
    const dir = made.directory()
    fuzz(104, random => {
      const tokenizer = TOKENIZERS[random.below(TOKENIZERS.length)]!
      if (random.below(4) === 0)
        return readTokenizer(dir, JSON.stringify(tokenizer), JSON.stringify(mutateJson(TOKENIZER_CONFIG, random)))
      return readTokenizer(dir, JSON.stringify(mutateJson(tokenizer, random)), JSON.stringify(TOKENIZER_CONFIG))
    })
  })
})

interface Corpus {
  headers: { name: string; header: string; dataBytes: number; length?: string; outcome: string }[]
  configs: { name: string; base: string; fields: Record<string, JsonValue>; outcome: string }[]
  indexes: { name: string; text: string; outcome: string }[]
  tokenizers: {
    name: string
    base: number
    fields: Record<string, JsonValue>
    config?: Record<string, JsonValue>
    outcome: string
  }[]
}

describe('the corpus', () => {
  const corpus = JSON.parse(readFileSync('test/fuzz/corpus.json', 'utf8')) as Corpus

  it.each(corpus.headers)('header: $name', ({ header, dataBytes, length, outcome }) => {
    const text = Buffer.from(header, 'latin1')
    const file = Buffer.alloc(8 + text.length + dataBytes)
    file.writeBigUInt64LE(BigInt(length ?? text.length), 0)
    text.copy(file, 8)
    expect(readHeader(made.directory(), file)).toBe(outcome)
  })

  it.each(corpus.configs)('config: $name', ({ base, fields, outcome }) => {
    const config = JSON.parse(readFileSync(`${FIXTURES}/${base}/config.json`, 'utf8')) as Record<string, JsonValue>
    expect(readConfig(made.directory(), JSON.stringify({ ...config, ...fields }), '{}')).toBe(outcome)
  })

  it.each(corpus.indexes)('index: $name', ({ text, outcome }) => {
    const dir = made.directory()
    writeFileSync(`${dir}/model-00001-of-00001.safetensors`, smallFile(dir))
    expect(readIndex(dir, text)).toBe(outcome)
  })

  it.each(corpus.tokenizers)('tokenizer: $name', ({ base, fields, config, outcome }) => {
    const tokenizer = { ...(TOKENIZERS[base] as Record<string, JsonValue>), ...fields }
    const tokenizerConfig = { ...(TOKENIZER_CONFIG as Record<string, JsonValue>), ...config }
    expect(readTokenizer(made.directory(), JSON.stringify(tokenizer), JSON.stringify(tokenizerConfig))).toBe(outcome)
  })
})
