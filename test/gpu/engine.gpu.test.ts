// Whole models on a GPU: logits of every fixture of the architectures that run there, in float32 against another implementation's
// and in bfloat16 against the CPU's; greedy tokens; graphs and overlap; the demo model's text; a rank in its own thread.
import { readFileSync } from 'node:fs'
import { describe, expect, it } from 'vitest'
import { Engine, GREEDY } from '../../src/engine/index.js'
import { openTokenizer } from '../../src/engine/load-model.js'
import { OneThreadEngine } from '../../src/engine/one-thread.js'
import { CounterRandom, STREAM } from '../../src/runtime/random.js'
import type { RankRequest } from '../../src/scheduler/index.js'
import {
  bitsOf,
  bothKinds,
  drawing,
  fixturePath,
  flagsFor,
  type GivenFlags,
  readReference,
  worstLogits,
} from '../engine/harness.js'
import { collect } from '../engine/requests.js'
import { bf16Bound, expectDrawn, expectGreedy, shortfall } from './agreement.js'
import { TEST_GPU } from './gpu.js'
import { distances, eachDraw, gapsAlong, gapsOf, logitsAlong, modelLoader, type Results, runAll } from './models.js'

const CUDA = `cuda:${TEST_GPU}`
const FIXTURES = [
  'deepseek_v2',
  'deepseek_v3',
  'deepseek_v3_yarn_noqlora',
  'mixtral',
  'olmoe',
  'qwen2_moe',
  'qwen3_moe',
]
const F32_TOLERANCE = 1e-3

const loadAnywhere = modelLoader()
const load: typeof loadAnywhere = (path, flags, options) => loadAnywhere(path, { device: CUDA, ...flags }, options)

describe.each(FIXTURES)('%s on a GPU', fixture => {
  const path = fixturePath(fixture)
  const prompts = readReference(path)
  const requests = bothKinds(prompts)

  it('float32: the logits of another implementation, and its greedy tokens where they are no near tie', async () => {
    const texts = prompts.map(({ ids, greedy }) => ({ ids, tokens: greedy }))
    const gaps = gapsAlong(await OneThreadEngine.load(flagsFor(path)), texts)
    for (const flags of [{}, { chunkedPrefillSize: 3 }] satisfies GivenFlags[]) {
      const results = runAll(await load(path, flags), requests)
      const worst = worstLogits(results, prompts)
      console.info(`${fixture} f32 ${JSON.stringify(flags)}: logits differ by ${worst.toExponential(2)}`)
      expect(worst).toBeLessThan(F32_TOLERANCE)
      prompts.forEach(({ greedy }, i) => {
        expectGreedy(`${fixture} f32`, results.get(`greedy.${i}`)!.tokens, greedy, gaps[i]!, worst)
      })
    }
  })

  it('bfloat16: within the roundings of its activations of the CPU, which rounds weights only', async () => {
    // Drawn experts are the same on both devices. Chosen ones may differ after a rounding, which is no error but moves a row far.
    const drawn = await bf16Rows(path, { dtype: 'bfloat16', epDispatchAlgorithm: 'fake' })
    const chosen = await bf16Rows(path, { dtype: 'bfloat16' })
    for (const [how, { at, largestLogit, bound }] of Object.entries({ drawn, chosen })) {
      console.info(
        `${fixture} bf16, experts ${how}: rows differ by ${at(0.5).toPrecision(3)} (median), ` +
          `${at(0.9).toPrecision(3)} (nine in ten), ${at(1).toPrecision(3)} (all) of logits up to ${largestLogit.toPrecision(3)}; ` +
          `bound ${bound.toPrecision(3)}`,
      )
    }
    expect(drawn.at(1)).toBeLessThan(drawn.bound)
    expect(chosen.at(0.5)).toBeLessThan(chosen.bound)
    // Tokens of chosen experts only: what is drawn for a row depends on its place in the batch.
    expectDrawn(`${fixture} bf16, experts chosen`, chosen.shortfalls, chosen.bound, 0.9)
  })
})

/** Rows of logits of both devices along what the GPU drew, how far they may lie apart, and how short of the CPU's best each draw is. */
async function bf16Rows(path: string, flags: GivenFlags) {
  const prompts = readReference(path)
  const engine = await load(path, flags)
  const found = runAll(engine, bothKinds(prompts))
  const texts = prompts.map(({ ids }, i) => ({ ids, tokens: found.get(`greedy.${i}`)!.tokens }))
  const cpu = logitsAlong(await OneThreadEngine.load(flagsFor(path, flags)), texts)
  const { vocabSize, layers } = engine.plan.spec
  const apart = distances(logitsAlong(engine, texts), cpu, vocabSize)
  return {
    ...apart,
    bound: bf16Bound(apart.largestLogit, layers.length),
    shortfalls: texts.flatMap((text, i) => eachDraw(text, cpu[i]!, vocabSize, shortfall)),
  }
}

/** Many requests of all lengths, so that the batch changes in nearly every step. */
function changingBatches(vocab: number, count: number, longest: number): RankRequest[] {
  const random = new CounterRandom(11, STREAM.wakeOrder)
  return Array.from({ length: count }, (_, i) => {
    const ids = Array.from({ length: 1 + random.below(20) }, () => random.below(vocab))
    const sampling = i % 3 === 0 ? { temperature: 0.8, topP: 0.9, seed: BigInt(i) } : {}
    return drawing(`${i}`, ids, 1 + random.below(longest), sampling)
  })
}

const bitsOfAll = (results: Results) =>
  [...results].map(([id, r]) => [id, r.tokens, [...bitsOf(Float32Array.from(r.logprobs))]])

function logprob(row: Float32Array, token: number): number {
  const best = row.reduce((a, b) => Math.max(a, b))
  return row[token]! - best - Math.log(row.reduce((sum, value) => sum + Math.exp(value - best), 0))
}

describe('graphs', () => {
  const flags: GivenFlags = {
    maxRunningRequests: 20,
    contextLength: 256,
    maxTotalTokens: 20 * 256,
    cudaGraphBs: '1,2,4,8,16,20',
  }

  it.each(['float32', 'bfloat16'] as const)(
    '1,000 decode steps with changing batches, %s',
    async dtype => {
      const path = fixturePath('qwen3_moe')
      const captured = await load(path, { ...flags, dtype })
      const plain = await load(path, { ...flags, dtype }, { uncaptured: true })
      const requests = changingBatches(captured.plan.spec.vocabSize, 220, 220)
      const [found, expected] = [runAll(captured, requests), runAll(plain, requests)]
      const steps = captured.lastSteps
      console.info(`${dtype}: ${steps} steps, ${requests.reduce((n, r) => n + r.maxTokens, 0)} tokens`)
      expect(steps).toBeGreaterThan(1000)
      expect(bitsOfAll(found)).toEqual(bitsOfAll(expected))
    },
    300_000,
  )

  // A graph of the batch's own size launches what runs without graphs; one of a larger size may take other kernels.
  it.each(['float32', 'bfloat16'] as const)(
    'of every size: the bits of --disable-cuda-graph, %s',
    async dtype => {
      const path = fixturePath('qwen3_moe')
      const every = Array.from({ length: 20 }, (_, i) => i + 1).join(',')
      const captured = await load(path, { ...flags, dtype, cudaGraphBs: every })
      const without = await load(path, { ...flags, dtype, disableCudaGraph: true })
      expect([captured.plan.graphBatches.length, without.plan.graphBatches.length]).toEqual([20, 0])
      const requests = changingBatches(captured.plan.spec.vocabSize, 220, 220)
      const [found, expected] = [runAll(captured, requests), runAll(without, requests)]
      expect(captured.lastSteps).toBeGreaterThan(1000)
      expect(bitsOfAll(found)).toEqual(bitsOfAll(expected))
    },
    300_000,
  )

  it('of larger sizes: the tokens of --disable-cuda-graph, but for near ties', { timeout: 300_000 }, async () => {
    const path = fixturePath('qwen3_moe')
    const captured = await load(path, flags)
    const without = await load(path, { ...flags, disableCudaGraph: true })
    const requests = changingBatches(captured.plan.spec.vocabSize, 220, 220)
    const [found, expected] = [runAll(captured, requests), runAll(without, requests)]
    const tokensOf = (results: Results, { id }: RankRequest) => results.get(id)!.tokens
    const equal = requests.filter(r => tokensOf(found, r).join() === tokensOf(expected, r).join()).length
    console.info(`${equal} of ${requests.length} requests have the same tokens`)
    expect(equal).toBeGreaterThan(0.9 * requests.length)
    const greedy = requests.filter(({ temperature }) => temperature === 0)
    const texts = greedy.map(request => ({ ids: [...request.inputIds], tokens: tokensOf(found, request) }))
    const { vocabSize } = without.plan.spec
    const along = logitsAlong(without, texts)
    const shortfalls = texts.flatMap((text, i) => eachDraw(text, along[i]!, vocabSize, shortfall))
    expectDrawn('graphs of larger sizes', shortfalls, F32_TOLERANCE)
  })

  it('overlapping steps give the tokens of steps one by one', async () => {
    const path = fixturePath('deepseek_v3')
    const ahead = await load(path, { ...flags, disableCudaGraph: true })
    const one = await load(path, { ...flags, disableCudaGraph: true, disableOverlapSchedule: true })
    expect([ahead.plan.overlap, one.plan.overlap]).toEqual([true, false])
    const requests = changingBatches(ahead.plan.spec.vocabSize, 40, 60)
    const [found, expected] = [runAll(ahead, requests), runAll(one, requests)]
    const tokens = (results: Results) => [...results].map(([id, r]) => [id, r.tokens])
    expect(tokens(found)).toEqual(tokens(expected))
  })
})

describe('the demo model on a GPU', () => {
  const references = JSON.parse(readFileSync('models/demo/reference.json', 'utf8')) as {
    readonly ids: readonly number[]
    readonly greedy: readonly number[]
    readonly text: string
  }[]
  const flags: GivenFlags = { contextLength: 128, maxTotalTokens: 4096 }

  it('float32: the text of the CPU up to the first near tie', async () => {
    const engine = await load('models/demo', { ...flags, dtype: 'float32' })
    const cpu = await OneThreadEngine.load(flagsFor('models/demo', { ...flags, dtype: 'float32' }))
    const requests = references.map(({ ids, greedy }, i) => drawing(`${i}`, ids, greedy.length))
    const [found, expected] = [runAll(engine, requests), runAll(cpu, requests)]
    const texts = references.map(({ ids }, i) => ({ ids, tokens: expected.get(`${i}`)!.tokens }))
    const gaps = gapsAlong(cpu, texts)
    const tokenizer = openTokenizer(engine.plan)!
    texts.forEach(({ tokens: theirs }, i) => {
      const { tokens } = found.get(`${i}`)!
      console.info(tokenizer.decode(tokens))
      expectGreedy('demo float32', tokens, theirs, gaps[i]!, F32_TOLERANCE)
    })
  })

  it('bfloat16: tokens that are the best of the CPU or near it, and as likely in the mean', async () => {
    const given = { ...flags, dtype: 'bfloat16' } as const
    const engine = await load('models/demo', given)
    const found = runAll(
      engine,
      references.map(({ ids, greedy }, i) => drawing(`${i}`, ids, greedy.length)),
    )
    const texts = references.map(({ ids }, i) => ({ ids, tokens: found.get(`${i}`)!.tokens }))
    const tokenizer = openTokenizer(engine.plan)!
    for (const { tokens } of texts) console.info(tokenizer.decode(tokens))
    const cpu = logitsAlong(await OneThreadEngine.load(flagsFor('models/demo', given)), texts)
    const gpu = logitsAlong(engine, texts)
    const { vocabSize, layers } = engine.plan.spec
    const { at, largestLogit, rows } = distances(gpu, cpu, vocabSize)
    const bound = bf16Bound(largestLogit, layers.length)
    console.info(
      `demo bfloat16: ${rows} rows differ by ${at(0.5).toPrecision(3)} (median), ${at(0.9).toPrecision(3)} (nine in ten), ` +
        `${at(1).toPrecision(3)} (all) of logits up to ${largestLogit.toPrecision(3)}; bound ${bound.toPrecision(3)}`,
    )
    expect(at(0.5)).toBeLessThan(bound / 2)
    // What rows here really differ by, not what they might.
    const tolerance = Math.min(bound, 3 * at(0.5))
    const shortfalls = texts.flatMap((text, i) => eachDraw(text, cpu[i]!, vocabSize, shortfall))
    expectDrawn('demo bfloat16', shortfalls, tolerance, 0.9)
    // Of a third of the draws at least no second token is within reach: they had to be equal.
    const gaps = gapsOf(texts, cpu, vocabSize).flat()
    expect(gaps.filter(gap => gap > 2 * tolerance).length).toBeGreaterThan(gaps.length / 3)
    // Errors of rows are independent, so their mean is smaller than one of them by the root of their number.
    const meanLogprob = (logits: readonly Float32Array[]) => {
      const all = texts.flatMap((text, i) => eachDraw(text, logits[i]!, vocabSize, logprob))
      return all.reduce((a, b) => a + b) / all.length
    }
    expect(Math.abs(meanLogprob(gpu) - meanLogprob(cpu))).toBeLessThan(bound / Math.sqrt(gaps.length))
  })

  it('a rank in its own thread: text, edits, log-probabilities, and an abort', async () => {
    await using engine = await Engine.start(flagsFor('models/demo', { ...flags, device: CUDA, dtype: 'float32' }))
    const { ids, text } = references[0]!
    const sampling = { ...GREEDY, maxTokens: references[0]!.greedy.length, ignoreEos: true }
    const plain = await collect(engine.generate({ inputIds: ids, sampling }))
    expect(plain.text).toBe(text)
    const banned = plain.tokens[0]!
    const edited = await collect(
      engine.generate({ inputIds: ids, sampling: { ...sampling, logitBias: { [banned]: -100 } }, topLogprobs: 2 }),
    )
    expect(edited.tokens).toHaveLength(sampling.maxTokens)
    expect(edited.tokens).not.toContain(banned)
    const controller = new AbortController()
    const endless = engine.generate({
      inputIds: ids,
      sampling: { ...sampling, maxTokens: 90 },
      signal: controller.signal,
    })
    let seen = 0
    for await (const event of endless) {
      seen += event.tokenIds.length
      if (seen >= 3) controller.abort()
    }
    const again = await collect(engine.generate({ inputIds: ids, sampling }))
    expect(again.tokens).toEqual(plain.tokens)
    expect(engine.state()[0]!.running).toBe(0)
  })
})
