// Whole models on a GPU: logits of every fixture of the architectures that run there, in float32 against another implementation's
// and in bfloat16 against the CPU's; greedy tokens; graphs and overlap; the demo model's text; a rank in its own thread.
import { readFileSync } from 'node:fs'
import { afterEach, describe, expect, it } from 'vitest'
import { Engine, GREEDY } from '../../src/engine/index.js'
import type { PlanOptions } from '../../src/engine/load-model.js'
import { openTokenizer } from '../../src/engine/load-model.js'
import { OneThreadEngine, type OneThreadResult } from '../../src/engine/one-thread.js'
import { CounterRandom, STREAM } from '../../src/runtime/random.js'
import type { RankRequest } from '../../src/scheduler/index.js'
import {
  bitsOf,
  bothKinds,
  drawing,
  fixturePath,
  flagsFor,
  type GivenFlags,
  maxDifference,
  type ReferencePrompt,
  readReference,
  wantingLogits,
  worstLogits,
} from '../engine/harness.js'
import { collect } from '../engine/requests.js'
import { bf16Bound, expectGreedy } from './agreement.js'
import { TEST_GPU } from './gpu.js'

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

let open: OneThreadEngine[] = []
afterEach(() => {
  for (const engine of open) engine.close()
  open = []
})

async function load(path: string, flags: GivenFlags, options: PlanOptions = {}): Promise<OneThreadEngine> {
  const engine = await OneThreadEngine.load(flagsFor(path, { device: CUDA, ...flags }), options)
  open.push(engine)
  return engine
}

const runAll = (engine: OneThreadEngine, requests: readonly RankRequest[]) =>
  engine.run(
    requests,
    requests.map(() => 0),
    0,
  )

/** Logits of prompt and greedy tokens together, on the CPU: how close the two best were when each token was drawn. */
async function gapsOf(path: string, prompts: readonly Pick<ReferencePrompt, 'ids' | 'greedy'>[], flags: GivenFlags) {
  const cpu = await OneThreadEngine.load(flagsFor(path, flags))
  const vocab = cpu.plan.spec.vocabSize
  const results = runAll(
    cpu,
    prompts.map(({ ids, greedy }, i) => wantingLogits(`${i}`, [...ids, ...greedy])),
  )
  return prompts.map(({ ids, greedy }, i) =>
    greedy.map((_, t) => {
      const row = results.get(`${i}`)!.logits.subarray((ids.length - 1 + t) * vocab, (ids.length + t) * vocab)
      const [first, second] = [...row].sort((a, b) => b - a)
      return first! - second!
    }),
  )
}

describe.each(FIXTURES)('%s on a GPU', fixture => {
  const path = fixturePath(fixture)
  const prompts = readReference(path)
  const requests = bothKinds(prompts)

  it('float32: the logits of another implementation, and its greedy tokens where they are no near tie', async () => {
    const gaps = await gapsOf(path, prompts, {})
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
    const drawn = await bf16Rows(path, prompts, requests, { dtype: 'bfloat16', epDispatchAlgorithm: 'fake' })
    const chosen = await bf16Rows(path, prompts, requests, { dtype: 'bfloat16' })
    for (const [how, { at, largest, bound }] of Object.entries({ drawn, chosen })) {
      console.info(
        `${fixture} bf16, experts ${how}: rows differ by ${at(0.5).toPrecision(3)} (median), ` +
          `${at(0.9).toPrecision(3)} (nine in ten), ${at(1).toPrecision(3)} (all) of logits up to ${largest.toPrecision(3)}; ` +
          `bound ${bound.toPrecision(3)}`,
      )
    }
    expect(drawn.at(1)).toBeLessThan(drawn.bound)
    expect(chosen.at(0.5)).toBeLessThan(chosen.bound)
    const { cpu, results, bound, at } = chosen
    const gaps = await gapsOf(
      path,
      prompts.map(({ ids }, i) => ({ ids, greedy: [...cpu.get(`greedy.${i}`)!.tokens] })),
      { dtype: 'bfloat16' },
    )
    prompts.forEach((_, i) => {
      const theirs = cpu.get(`greedy.${i}`)!.tokens
      expectGreedy(`${fixture} bf16`, results.get(`greedy.${i}`)!.tokens, theirs, gaps[i]!, Math.max(bound, at(1)))
    })
  })
})

/** Rows of logits of both devices, and how far they may lie apart. */
async function bf16Rows(
  path: string,
  prompts: ReturnType<typeof readReference>,
  requests: ReturnType<typeof bothKinds>,
  flags: GivenFlags,
) {
  const cpu = runAll(await OneThreadEngine.load(flagsFor(path, flags)), requests)
  const engine = await load(path, flags)
  const results = runAll(engine, requests)
  const { vocabSize, layers } = engine.plan.spec
  const rows: number[] = []
  let largest = 0
  prompts.forEach((_, i) => {
    const [found, expected] = [results.get(`logits.${i}`)!.logits, cpu.get(`logits.${i}`)!.logits]
    for (let row = 0; row < expected.length; row += vocabSize) {
      const theirs = expected.subarray(row, row + vocabSize)
      rows.push(maxDifference(found.subarray(row, row + vocabSize), theirs))
      largest = Math.max(largest, ...theirs.map(Math.abs))
    }
  })
  rows.sort((a, b) => a - b)
  const at = (share: number) => rows[Math.floor(share * (rows.length - 1))]!
  const bound = bf16Bound(largest, layers.length)
  return { cpu, results, largest, bound, at }
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

const bitsOfAll = (results: ReadonlyMap<string, OneThreadResult>) =>
  [...results].map(([id, r]) => [id, r.tokens, [...bitsOf(Float32Array.from(r.logprobs))]])

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

  it('overlapping steps give the tokens of steps one by one', async () => {
    const path = fixturePath('deepseek_v3')
    const ahead = await load(path, { ...flags, disableCudaGraph: true })
    const one = await load(path, { ...flags, disableCudaGraph: true, disableOverlapSchedule: true })
    expect([ahead.plan.overlap, one.plan.overlap]).toEqual([true, false])
    const requests = changingBatches(ahead.plan.spec.vocabSize, 40, 60)
    const [found, expected] = [runAll(ahead, requests), runAll(one, requests)]
    const tokens = (results: ReadonlyMap<string, OneThreadResult>) => [...results].map(([id, r]) => [id, r.tokens])
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

  it.each(['float32', 'bfloat16'] as const)('%s: the text of the CPU up to the first near tie', async dtype => {
    const engine = await load('models/demo', { ...flags, dtype })
    const cpu = await OneThreadEngine.load(flagsFor('models/demo', { ...flags, dtype }))
    const requests = references.map(({ ids, greedy }, i) => drawing(`${i}`, ids, greedy.length))
    const [found, expected] = [runAll(engine, requests), runAll(cpu, requests)]
    const prompts = references.map(({ ids }, i) => ({ ids, greedy: [...expected.get(`${i}`)!.tokens] }))
    const gaps = await gapsOf('models/demo', prompts, { ...flags, dtype })
    const tokenizer = openTokenizer(engine.plan)!
    const tolerance = dtype === 'float32' ? F32_TOLERANCE : 0.25
    prompts.forEach(({ greedy }, i) => {
      const { tokens } = found.get(`${i}`)!
      console.info(tokenizer.decode(tokens))
      expectGreedy(`demo ${dtype}`, tokens, greedy, gaps[i]!, tolerance)
    })
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
