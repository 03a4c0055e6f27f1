// What callers of a running engine rely on: how an output ends, what noise depends on, what an abort frees, what is refused.
// Real worker threads (two attention-DP ranks), the demo model, one engine for all.
import { readFileSync } from 'node:fs'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import {
  type Engine,
  type GenerationRequest,
  GREEDY,
  RequestError,
  type SamplingParams,
  startEngine,
} from '../../src/engine/index.js'
import { until } from '../serve-echo.js'
import { flagsFor } from './harness.js'
import { collect, first } from './requests.js'

const DEMO = 'models/demo'
const references = JSON.parse(readFileSync(`${DEMO}/reference.json`, 'utf8')) as {
  readonly ids: readonly number[]
  readonly greedy: readonly number[]
  readonly text: string
}[]
const [story, code] = [references[0]!, references[1]!]
const CONTEXT = 256

let engine: Engine
beforeAll(async () => {
  const layout = { tpSize: 2, attnDpSize: 2, epSize: 2 }
  const limits = { contextLength: CONTEXT, maxTotalTokens: CONTEXT, maxRunningRequests: 8, pageSize: 16 }
  engine = await startEngine(flagsFor(DEMO, { ...layout, ...limits }))
})
afterAll(() => engine?.close())

const request = (
  inputIds: readonly number[],
  sampling: Partial<SamplingParams>,
  more: Partial<GenerationRequest> = {},
): GenerationRequest => ({ inputIds, sampling: { ...GREEDY, maxTokens: 48, ...sampling }, ...more })

const run = (ids: readonly number[], sampling: Partial<SamplingParams> = {}, more: Partial<GenerationRequest> = {}) =>
  collect(engine.generate(request(ids, sampling, more)))

const isFree = () => engine.state().every(s => s.usedTokens === 0 && s.running === 0 && s.waiting === 0)
const untilFree = () => until(isFree, 'no request holds KV pages')

describe('ends of an output', () => {
  it('length: as many tokens as asked for, their text, usage and timings', async () => {
    const { text, tokens, finish } = await run(story.ids)
    expect(tokens).toEqual(story.greedy)
    expect(text).toBe(story.text)
    expect(finish).toMatchObject({
      reason: 'length',
      usage: { promptTokens: story.ids.length, completionTokens: 48 },
    })
    const { queueMs, firstTokenMs, totalMs } = finish!.timings
    expect(queueMs <= firstTokenMs && firstTokenMs <= totalMs).toBe(true)
  })

  it.each(['village, and', ' little village, and a li', 'sea', ', with a'])('stop text %j', async stop => {
    const { text, pieces, tokens, finish } = await run(story.ids, { stop: ['never said', stop] })
    const at = story.text.indexOf(stop)
    expect(text).toBe(at < 0 ? story.text : story.text.slice(0, at))
    expect(finish?.reason).toBe(at < 0 ? 'length' : 'stop')
    expect(tokens).toEqual(story.greedy.slice(0, tokens.length))
    if (at >= 0) expect(tokens.length).toBeLessThan(48)
    // No event shows a character that belongs to the stop text, even for a moment.
    expect(pieces.every((_, i) => text.startsWith(pieces.slice(0, i + 1).join('')))).toBe(true)
  })

  it('text that was held back for a stop that does not come is given in the end', async () => {
    const stop = `${story.text.slice(-9)} that nobody knows`
    const { text, pieces, finish } = await run(story.ids, { stop: [stop] })
    expect(text).toBe(story.text)
    expect(finish?.reason).toBe('length')
    expect(pieces.at(-1)).toBe(story.text.slice(-9))
  })

  it('a stop text of one request ends no other', async () => {
    const [stopped, other] = await Promise.all([run(story.ids, { stop: ['little'] }), run(story.ids)])
    expect(stopped.text).toBe(story.text.slice(0, story.text.indexOf('little')))
    expect(other.text).toBe(story.text)
  })

  it('stop token ids: the token is counted, its text is not shown', async () => {
    const end = story.greedy.indexOf(14)
    const { text, tokens, finish } = await run(story.ids, { stopTokenIds: [8000, 14] })
    expect(tokens).toEqual(story.greedy.slice(0, end + 1))
    expect(text).toBe(engine.tokenizer!.decode(story.greedy.slice(0, end)))
    expect(finish).toMatchObject({ reason: 'stop', usage: { completionTokens: end + 1 } })
  })

  it('end-of-text tokens of the model end it, unless they are ignored', async () => {
    const eos = story.greedy[4]!
    const flags = flagsFor(DEMO, { contextLength: 128, jsonModelOverrideArgs: { eos_token_id: eos } })
    await using other = await startEngine(flags)
    const ended = await collect(other.generate(request(story.ids, {})))
    expect(ended.tokens).toEqual(story.greedy.slice(0, story.greedy.indexOf(eos) + 1))
    expect(ended.finish?.reason).toBe('stop')
    const ignored = await collect(other.generate(request(story.ids, { ignoreEos: true })))
    expect(ignored.tokens).toEqual(story.greedy)
  })
})

describe('sampling', () => {
  const noisy = { temperature: 1.2, topP: 0.97, topK: 400, minP: 0.001, seed: 77n, ignoreEos: true } as const

  it('the same seed gives the same text whatever shares the batch and on either rank', async () => {
    const alone = await run(story.ids, noisy, { routedDpRank: 0 })
    const crowd = [1n, 2n, 3n].map(seed => run(code.ids, { ...noisy, seed, maxTokens: 30 }))
    const among = await Promise.all([run(story.ids, noisy, { routedDpRank: 0 }), ...crowd])
    const there = await run(story.ids, noisy, { routedDpRank: 1 })
    expect(among[0]!.tokens).toEqual(alone.tokens)
    expect(there.tokens).toEqual(alone.tokens)
    expect(alone.tokens).toHaveLength(48)
    expect(alone.tokens).not.toEqual(story.greedy)
  })

  it('other seeds give other texts, and so do requests without one', async () => {
    const unseeded = { ...noisy, seed: null }
    const texts = await Promise.all([
      run(story.ids, noisy),
      run(story.ids, { ...noisy, seed: 78n }),
      run(story.ids, { ...noisy, seed: 77n + (1n << 40n) }),
      run(story.ids, unseeded),
      run(story.ids, unseeded),
    ])
    expect(new Set(texts.map(t => t.tokens.join())).size).toBe(5)
  })

  it.each([
    ['top_k 1', { topK: 1 }],
    ['min_p 1', { minP: 1 }],
    ['a tiny top_p', { topP: 1e-6 }],
    ['a temperature near 0', { temperature: 1e-3 }],
  ] as const)('%s leaves only the best token', async (_, limit) => {
    const { tokens } = await run(story.ids, { temperature: 1.5, seed: 5n, ...limit })
    expect(tokens).toEqual(story.greedy)
  })

  it('top_k 3 draws among the three best', async () => {
    const sampling = { temperature: 3, topK: 3, ignoreEos: true, maxTokens: 1 }
    const seeds = Array.from({ length: 40 }, (_, i) => BigInt(i))
    const drawn = await Promise.all(seeds.map(seed => run(story.ids, { ...sampling, seed })))
    const logits = await engine.logits(story.ids)
    const last = [...logits.subarray(-engine.vocabSize)]
    const best = last.map((v, i) => [v, i] as const).sort(([a], [b]) => b - a)
    expect(new Set(drawn.map(d => d.tokens[0]))).toEqual(new Set(best.slice(0, 3).map(([, i]) => i)))
  })
})

describe('aborts', () => {
  it('by signal: the stream ends with "abort", its KV pages are free at once, others go on', async () => {
    await untilFree()
    const controller = new AbortController()
    const long = { maxTokens: 200, ignoreEos: true }
    const events = engine.generate(request(story.ids, long, { signal: controller.signal, routedDpRank: 1 }))
    const iterator = events[Symbol.asyncIterator]()
    await first(iterator, 3)
    expect(engine.state()[1]!.usedTokens).toBeGreaterThan(story.ids.length)
    const other = run(story.ids, {}, { routedDpRank: 0 })
    controller.abort()
    const rest = await collect({ [Symbol.asyncIterator]: () => iterator })
    expect(rest.finish?.reason).toBe('abort')
    expect(rest.finish!.usage.completionTokens).toBeLessThan(200)
    await until(() => engine.state()[1]!.usedTokens === 0, 'the aborted request holds no pages')
    expect((await other).tokens).toEqual(story.greedy)
    await untilFree()
  })

  it('by leaving the loop', async () => {
    for await (const event of engine.generate(request(story.ids, { maxTokens: 200, ignoreEos: true }))) {
      if (event.tokenIds.length > 0) break
    }
    await untilFree()
  })

  it('before it begins', async () => {
    const { finish, tokens } = await run(story.ids, {}, { signal: AbortSignal.abort() })
    expect(finish?.reason).toBe('abort')
    expect(tokens).toEqual([])
    await untilFree()
  })
})

describe('a pool that is too small for all', () => {
  it('lets requests wait and then run, with the same tokens', async () => {
    await untilFree()
    const prompts = [5, 6, 7].map(start => [0, ...Array.from({ length: 149 }, (_, i) => start + ((i * 37) % 4000))])
    const alone = []
    for (const ids of prompts) alone.push((await run(ids, { maxTokens: 20, ignoreEos: true })).tokens)
    let [waited, most] = [0, 0]
    const watching = setInterval(() => {
      waited = Math.max(waited, engine.state()[0]!.waiting)
      most = Math.max(most, engine.state()[0]!.usedTokens)
    }, 1)
    const together = prompts.map(ids => run(ids, { maxTokens: 20, ignoreEos: true }, { routedDpRank: 0 }))
    const results = await Promise.all(together)
    clearInterval(watching)
    expect(results.map(r => r.tokens)).toEqual(alone)
    expect(waited).toBeGreaterThan(0)
    expect(most).toBeGreaterThan(0)
    expect(most).toBeLessThanOrEqual(CONTEXT)
    await untilFree()
  })
})

describe('a request as a program writes it', () => {
  it('is greedy and 16 tokens long where it says nothing', async () => {
    const plain = await collect(engine.generate({ inputIds: story.ids }))
    expect(plain.tokens).toEqual((await run(story.ids, { maxTokens: 16 })).tokens)
    const short = await collect(engine.generate({ inputIds: story.ids, sampling: { maxTokens: 3 } }))
    expect(short.tokens).toEqual(plain.tokens.slice(0, 3))
  })

  it.each([{}, { inputIds: 'Once upon a time' }, { inputIds: null }])('names what %j lacks', wrong => {
    expect(() => engine.generate(wrong as never)).toThrow(
      expect.objectContaining({ code: 'SY_REQUEST_BAD_PARAMETER', message: expect.stringContaining('inputIds') }),
    )
  })
})

describe('refusals before anything runs', () => {
  const ids = story.ids
  it.each([
    ['SY_REQUEST_EMPTY', request([], {})],
    ['SY_REQUEST_TOO_LONG', request(ids, { maxTokens: CONTEXT - ids.length + 1 })],
    [
      'SY_REQUEST_TOO_LONG',
      request(
        Array.from({ length: CONTEXT }, () => 5),
        { maxTokens: 1 },
      ),
    ],
    ['SY_REQUEST_BAD_TOKEN', request([5, 8192], {})],
    ['SY_REQUEST_BAD_TOKEN', request([5, -1], {})],
    ['SY_REQUEST_BAD_TOKEN', request([5, 1.5], {})],
    ['SY_REQUEST_BAD_PARAMETER', request(ids, { temperature: -0.1 })],
    ['SY_REQUEST_BAD_PARAMETER', request(ids, { temperature: Number.NaN })],
    ['SY_REQUEST_BAD_PARAMETER', request(ids, { topP: 0 })],
    ['SY_REQUEST_BAD_PARAMETER', request(ids, { minP: 1.1 })],
    ['SY_REQUEST_BAD_PARAMETER', request(ids, { topK: -1 })],
    ['SY_REQUEST_BAD_PARAMETER', request(ids, { maxTokens: 0 })],
    ['SY_REQUEST_BAD_PARAMETER', request(ids, { stopTokenIds: [8192] })],
    ['SY_REQUEST_BAD_PARAMETER', request(ids, { stopTokenIds: [1, -1] })],
    ['SY_REQUEST_NO_SUCH_RANK', request(ids, {}, { routedDpRank: 2 })],
  ])('%s', async (code, bad) => {
    const before = engine.state().map(s => s.steps)
    const thrown = (() => {
      try {
        engine.generate(bad)
      } catch (error) {
        return error
      }
      return null
    })()
    expect(thrown).toBeInstanceOf(RequestError)
    expect(thrown).toMatchObject({ code, status: 400 })
    expect(engine.state().map(s => s.steps)).toEqual(before)
  })

  it('an id that is running', async () => {
    const running = engine.generate(request(ids, {}, { id: 'mine' }))
    expect(() => engine.generate(request(ids, {}, { id: 'mine' }))).toThrow(RequestError)
    expect((await collect(running)).tokens).toEqual(story.greedy)
    expect((await run(ids, {}, { id: 'mine' })).tokens).toEqual(story.greedy)
  })

  it('the longest request that fits runs', async () => {
    const { tokens } = await run(ids, { maxTokens: CONTEXT - ids.length, ignoreEos: true })
    expect(tokens).toHaveLength(CONTEXT - ids.length)
  })
})
