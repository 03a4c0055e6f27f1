// Two thousand requests in bursts, many of them aborted at any moment, on four ranks of real worker threads. Each text is
// (a beginning of) what one rank alone makes of the same prompt, nothing is lost, and every KV page comes back.
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { Engine, type GenerationEvent, GREEDY } from '../../src/engine/index.js'
import { CounterRandom, STREAM } from '../../src/runtime/random.js'
import { until } from '../serve-echo.js'
import { Deadline } from './deadline.js'
import { fixturePath, flagsFor, type GivenFlags } from './harness.js'

const PROMPTS = 120
const REQUESTS = 2000
const LONGEST_OUTPUT = 16
const SEED = 20

const start = (flags: GivenFlags): Promise<Engine> =>
  Engine.start(flagsFor(fixturePath('deepseek_v3'), { maxTotalTokens: 24 * 64, ...flags }))

const random = new CounterRandom(SEED, STREAM.wakeOrder)
const prompts = Array.from({ length: PROMPTS }, () =>
  Array.from({ length: 1 + random.below(46) }, () => 3 + random.below(157)),
)

/** When a caller gives up: never, before the request is sent, or after so many tokens; by signal or by leaving. */
type Fate = { readonly kind: 'stays' } | { readonly kind: 'signal' | 'leaves'; readonly after: number }

interface Ask {
  readonly prompt: number
  readonly maxTokens: number
  readonly fate: Fate
}

const drawAsk = (abortsInTen: number): Ask => {
  const aborts = random.below(10) < abortsInTen
  const kind = random.below(2) === 0 ? 'signal' : 'leaves'
  return {
    prompt: random.below(PROMPTS),
    maxTokens: 1 + random.below(LONGEST_OUTPUT),
    fate: aborts ? { kind, after: random.below(6) } : { kind: 'stays' },
  }
}

interface End {
  readonly tokens: readonly number[]
  readonly reason: string
}

async function ask(engine: Engine, { prompt, maxTokens, fate }: Ask): Promise<End> {
  const controller = new AbortController()
  const after = fate.kind === 'stays' ? Number.POSITIVE_INFINITY : fate.after
  if (fate.kind === 'signal' && after === 0) controller.abort()
  const sampling = { ...GREEDY, maxTokens, ignoreEos: true }
  const events = engine.generate({ inputIds: prompts[prompt]!, sampling, signal: controller.signal })
  const tokens: number[] = []
  let last: GenerationEvent | null = null
  for await (const event of events) {
    tokens.push(...event.tokenIds)
    last = event
    if (event.finish || tokens.length < after) continue
    if (fate.kind === 'leaves') break
    controller.abort()
  }
  return { tokens, reason: last?.finish?.reason ?? 'left' }
}

describe('2,000 requests in bursts with aborts', () => {
  let texts: readonly (readonly number[])[]
  let engine: Engine

  beforeAll(async () => {
    const alone = await start({})
    const ends = await Promise.all(
      prompts.map((_, prompt) => ask(alone, { prompt, maxTokens: LONGEST_OUTPUT, fate: { kind: 'stays' } })),
    )
    await alone.close()
    texts = ends.map(end => end.tokens)
    engine = await start({ tpSize: 4, attnDpSize: 2, epSize: 4 })
  })
  afterAll(async () => {
    await engine.close()
  })

  it('give the single-rank text or a beginning of it, lose nothing and leave no page behind', async () => {
    const all: { readonly asked: Ask; readonly end: End }[] = []
    let [sent, waves] = [0, [] as Promise<unknown>[]]
    while (sent < REQUESTS) {
      const size = Math.min(REQUESTS - sent, 1 + random.below(160))
      sent += size
      const abortsInTen = random.below(8)
      const wave = Array.from({ length: size }, () => drawAsk(abortsInTen)).map(async asked => {
        all.push({ asked, end: await ask(engine, asked) })
      })
      waves.push(Promise.all(wave))
      // Most bursts meet the one before; now and then the engine falls idle between them.
      if (random.below(3) > 0) await Promise.race(waves)
      else await Deadline.of(Promise.all(waves), 'a burst', 30_000)
      if (waves.length > 3) waves = [Promise.all(waves)]
    }
    await Deadline.of(Promise.all(waves), 'the last bursts', 30_000)

    expect(all).toHaveLength(REQUESTS)
    const reasons: Record<string, number> = {}
    for (const { asked, end } of all) {
      reasons[end.reason] = (reasons[end.reason] ?? 0) + 1
      expect(end.tokens).toEqual(texts[asked.prompt]!.slice(0, end.tokens.length))
      if (asked.fate.kind === 'stays') expect(end).toMatchObject({ reason: 'length' })
      if (end.reason === 'length') expect(end.tokens).toHaveLength(asked.maxTokens)
    }
    // The bursts were what they were meant to be.
    for (const reason of ['length', 'abort', 'left']) expect(reasons[reason]).toBeGreaterThan(100)
    await until(() => engine.state().every(s => s.running + s.waiting + s.usedTokens === 0), 'every page is free')
    for (const { steps } of engine.state()) expect(steps).toBeGreaterThan(50)
  }, 60_000)
})
