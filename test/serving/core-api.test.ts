// The API of the core against the demo model with real ranks: what log-probabilities say is what the logits say, and
// every field of sampling does what it promises.
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { engineFlags } from '../../src/config/flags.js'
import { type Engine, startEngine } from '../../src/engine/index.js'
import { until } from '../serve-echo.js'
import { type ServedEngine, serveEngine } from './serve-engine.js'

interface Completion {
  readonly choices: readonly {
    readonly index: number
    readonly text: string
    readonly token_ids: readonly number[]
    readonly finish_reason: string
    readonly logprobs: {
      readonly tokens: readonly string[]
      readonly token_logprobs: readonly (number | null)[]
      readonly top_logprobs: readonly (Readonly<Record<string, number>> | null)[]
      readonly text_offset: readonly number[]
    } | null
  }[]
  readonly usage: { readonly prompt_tokens: number; readonly completion_tokens: number }
}

interface Native {
  readonly text: string
  readonly output_ids: readonly number[]
  readonly index?: number
  readonly meta_info: Readonly<Record<string, unknown>> & {
    readonly finish_reason: unknown
    readonly input_token_logprobs: readonly (readonly [number | null, number, string | null])[]
    readonly output_token_logprobs: readonly (readonly [number, number, string | null])[]
  }
}

const PROMPT = 'Once upon a time there was a'
let served: ServedEngine<Engine>
let engine: Engine
let ids: readonly number[]

beforeAll(async () => {
  const flags = engineFlags({
    modelPath: 'models/demo',
    dtype: 'float32',
    contextLength: 256,
    maxRunningRequests: 16,
    randomSeed: 1,
    tpSize: 2,
    dpSize: 2,
    enableDpAttention: true,
  })
  engine = await startEngine(flags)
  served = await serveEngine(engine)
  ids = engine.tokenizer!.encode(PROMPT, { addSpecialTokens: true })
})
afterAll(() => served[Symbol.asyncDispose]())

const complete = (body: object) =>
  served.json<Completion>('/v1/completions', {
    prompt: PROMPT,
    temperature: 0,
    max_tokens: 8,
    return_token_ids: true,
    ...body,
  })

/** Log-softmax of each row of the engine's logits for `tokens`, in double precision. */
async function reference(tokens: readonly number[]): Promise<(row: number, id: number) => number> {
  const logits = await engine.logits(tokens)
  const vocab = engine.vocabSize
  return (row, id) => {
    const values = logits.subarray(row * vocab, (row + 1) * vocab)
    const most = values.reduce((a, b) => Math.max(a, b), Number.NEGATIVE_INFINITY)
    return values[id]! - most - Math.log(values.reduce((sum, x) => sum + Math.exp(x - most), 0))
  }
}

describe('log-probabilities', () => {
  it('of the output are those of the logits, whatever the temperature and the edits', async () => {
    for (const sampling of [{}, { temperature: 1.3, seed: 5 }, { presence_penalty: 1.5, logit_bias: { 300: 5 } }]) {
      const { choices } = await complete({ logprobs: 3, ...sampling })
      const { token_ids, logprobs, text } = choices[0]!
      const expected = await reference([...ids, ...token_ids])
      token_ids.forEach((id, i) => {
        expect(logprobs!.token_logprobs[i]).toBeCloseTo(expected(ids.length - 1 + i, id), 4)
        const best = Object.values(logprobs!.top_logprobs[i]!)
        expect(best).toHaveLength(3)
        expect([...best].sort((a, b) => b - a)).toEqual(best)
      })
      expect(logprobs!.tokens.join('')).toBe(text)
      logprobs!.tokens.forEach((token, i) => {
        expect(text.slice(logprobs!.text_offset[i]!).startsWith(token)).toBe(true)
      })
    }
  })

  it('of the prompt come with echo, and the prompt alone with max_tokens 0', async () => {
    const expected = await reference(ids)
    const alone = await complete({ echo: true, logprobs: 1, max_tokens: 0 })
    const choice = alone.choices[0]!
    expect([choice.text, choice.finish_reason, alone.usage.completion_tokens]).toEqual([PROMPT, 'length', 0])
    expect(choice.logprobs!.token_logprobs).toHaveLength(ids.length)
    expect(choice.logprobs!.token_logprobs[0]).toBeNull()
    ids.slice(1).forEach((id, i) => {
      expect(choice.logprobs!.token_logprobs[i + 1]).toBeCloseTo(expected(i, id), 4)
    })
    const both = (await complete({ echo: true, logprobs: 1, max_tokens: 3 })).choices[0]!
    expect(both.text.startsWith(PROMPT)).toBe(true)
    expect(both.logprobs!.token_logprobs).toHaveLength(ids.length + 3)
    expect(both.logprobs!.token_logprobs.slice(0, ids.length)).toEqual(choice.logprobs!.token_logprobs)
    // The first token is the beginning-of-text token, which is no text.
    expect(both.logprobs!.tokens.slice(1).join('')).toBe(both.text)
  })

  it('of a prompt longer than one step are complete', async () => {
    const long = Array.from({ length: 90 }, (_, i) => 300 + i)
    const expected = await reference(long)
    const { choices } = await complete({ prompt: long, echo: true, logprobs: 0, max_tokens: 1 })
    const found = choices[0]!.logprobs!.token_logprobs
    expect(found).toHaveLength(91)
    long.slice(1).forEach((id, i) => {
      expect(found[i + 1]).toBeCloseTo(expected(i, id), 4)
    })
  })

  it('of chat name bytes, and stream to the same lists', async () => {
    const ask = {
      messages: [{ role: 'user', content: 'Hi' }],
      max_tokens: 6,
      temperature: 0,
      logprobs: true,
      top_logprobs: 2,
    }
    type Entry = { token: string; bytes: number[]; logprob: number; top_logprobs: { logprob: number }[] }
    if (!engine.tokenizer!.hasChatTemplate) return
    const whole = await served.json<{ choices: { message: { content: string }; logprobs: { content: Entry[] } }[] }>(
      '/v1/chat/completions',
      ask,
    )
    const { content } = whole.choices[0]!.logprobs
    expect(content).toHaveLength(6)
    for (const entry of content) {
      expect(Buffer.from(entry.bytes).toString()).toBe(entry.token)
      expect(entry.top_logprobs[0]!.logprob).toBeCloseTo(entry.logprob, 6)
    }
    const text = await (await served.post('/v1/chat/completions', { ...ask, stream: true })).text()
    const streamed = text
      .split('\n\n')
      .filter(block => block.startsWith('data: {'))
      .flatMap(block => {
        const { choices } = JSON.parse(block.slice(6)) as { choices: { logprobs: { content: Entry[] } | null }[] }
        return choices[0]?.logprobs?.content ?? []
      })
    expect(streamed).toEqual(content)
  })
})

describe('sampling fields', () => {
  it('n makes that many choices, each with a seed of its own, and counts the prompt once', async () => {
    const seeded = { temperature: 1, seed: 40, max_tokens: 12 }
    const three = await complete({ ...seeded, n: 3 })
    expect(three.choices.map(c => c.index)).toEqual([0, 1, 2])
    expect(new Set(three.choices.map(c => c.text)).size).toBe(3)
    expect(three.usage).toMatchObject({ prompt_tokens: ids.length, completion_tokens: 36 })
    // Only on the same DP rank are bits promised to be equal.
    const again = await complete({ ...seeded, n: 3, routed_dp_rank: 1 })
    const second = await complete({ ...seeded, seed: 41, routed_dp_rank: 1 })
    expect(second.choices[0]!.text).toBe(again.choices[1]!.text)
    const two = await complete({ prompt: [PROMPT, 'Ships'], n: 2, max_tokens: 2 })
    expect(two.choices.map(c => c.index)).toEqual([0, 1, 2, 3])
    expect(two.choices[0]!.text).toBe(two.choices[1]!.text)
  })

  it('logit_bias forces and forbids tokens', async () => {
    const plain = (await complete({})).choices[0]!.token_ids
    const forced = (await complete({ logit_bias: { 65: 100 } })).choices[0]!.token_ids
    expect(forced).toEqual(Array(8).fill(65))
    const forbidden = (await complete({ logit_bias: { [plain[0]!]: -100 } })).choices[0]!.token_ids
    expect(forbidden).not.toContain(plain[0])
  })

  it('penalties keep a greedy text from repeating itself', async () => {
    const distinct = (choice: Completion['choices'][number]) => new Set(choice.token_ids).size
    const plain = (await complete({ max_tokens: 60 })).choices[0]!
    const frequent = (await complete({ max_tokens: 60, frequency_penalty: 2, presence_penalty: 2, ignore_eos: true }))
      .choices[0]!
    const repeated = (await complete({ max_tokens: 60, repetition_penalty: 2, ignore_eos: true })).choices[0]!
    expect(distinct(frequent)).toBeGreaterThan(distinct(plain))
    expect(distinct(repeated)).toBeGreaterThan(distinct(plain))
  })

  it('min_tokens holds back end tokens and stop texts', async () => {
    const plain = (await complete({ max_tokens: 8 })).choices[0]!
    const end = plain.token_ids[1]!
    const ended = (await complete({ stop_token_ids: [end] })).choices[0]!
    expect([ended.token_ids, ended.finish_reason]).toEqual([plain.token_ids.slice(0, 2), 'stop'])
    const longer = (await complete({ stop_token_ids: [end], min_tokens: 5 })).choices[0]!
    expect(longer.token_ids.length).toBeGreaterThanOrEqual(5)
    expect(longer.token_ids.slice(0, 5)).not.toContain(end)
    const word = plain.text.trim().split(' ')[0]!
    expect((await complete({ stop: word })).choices[0]!.text).not.toContain(word)
    const past = (await complete({ stop: word, min_tokens: 3 })).choices[0]!
    expect(past.text.startsWith(plain.text.slice(0, word.length + 1))).toBe(true)
  })
})

describe('/generate', () => {
  const ask = (body: object) => served.json<Native>('/generate', body)
  const greedy = { temperature: 0, max_new_tokens: 6 }

  it('takes text or ids, one or many, and says how each ended', async () => {
    const one = await ask({ text: PROMPT, sampling_params: greedy, rid: 'mine' })
    expect(one.meta_info).toMatchObject({
      id: 'mine',
      prompt_tokens: ids.length,
      completion_tokens: 6,
      finish_reason: { type: 'length', length: 6 },
    })
    expect((await ask({ input_ids: ids, sampling_params: greedy })).output_ids).toEqual(one.output_ids)
    const many = await served.json<Native[]>('/generate', {
      text: [PROMPT, 'Ships'],
      sampling_params: [greedy, { ...greedy, max_new_tokens: 2 }],
    })
    expect(many.map(m => m.output_ids.length)).toEqual([6, 2])
    const stopped = await ask({ text: PROMPT, sampling_params: { ...greedy, stop_token_ids: [one.output_ids[2]] } })
    expect(stopped.meta_info.finish_reason).toEqual({ type: 'stop', matched: one.output_ids[2] })
    const cut = await ask({ text: PROMPT, sampling_params: { ...greedy, stop: ['deal'] } })
    expect(cut.meta_info.finish_reason).toEqual({ type: 'stop', matched: 'deal' })
  })

  it('streams texts so far, by prompt', async () => {
    const whole = await ask({ text: PROMPT, sampling_params: greedy })
    const stream = await served.post('/generate', { text: [PROMPT, PROMPT], sampling_params: greedy, stream: true })
    const blocks = (await stream.text()).split('\n\n').filter(block => block !== '')
    expect(blocks.at(-1)).toBe('data: [DONE]')
    const last = new Map<number, Native>()
    for (const block of blocks.slice(0, -1)) {
      const body = JSON.parse(block.slice(6)) as Native
      expect(body.text.startsWith(last.get(body.index!)?.text ?? '')).toBe(true)
      last.set(body.index!, body)
    }
    expect([last.get(0)!.text, last.get(1)!.text]).toEqual([whole.text, whole.text])
  })

  it('reports log-probabilities from where they were asked for', async () => {
    const expected = await reference(ids)
    const body = { text: PROMPT, sampling_params: greedy, return_logprob: true, top_logprobs_num: 2 }
    const output = await ask({ ...body, return_text_in_logprobs: true })
    expect(output.meta_info.input_token_logprobs).toEqual([])
    expect(output.meta_info.output_token_logprobs.map(l => l[1])).toEqual(output.output_ids)
    expect(output.meta_info.output_token_logprobs.map(l => l[2]).join('')).toBe(output.text)
    const from = await ask({ ...body, logprob_start_len: 3 })
    const input = from.meta_info.input_token_logprobs
    expect(input.map(l => l[1])).toEqual(ids.slice(3))
    input.forEach(([logprob], i) => {
      expect(logprob).toBeCloseTo(expected(i + 2, ids[i + 3]!), 4)
    })
    const all = await ask({ ...body, logprob_start_len: 0, sampling_params: { max_new_tokens: 0 } })
    expect(all.meta_info.input_token_logprobs[0]![0]).toBeNull()
    expect(all.output_ids).toEqual([])
  })
})

describe('control', () => {
  const long = { text: PROMPT, sampling_params: { max_new_tokens: 200, ignore_eos: true } }
  const post = async (path: string, body: object = {}) => (await served.post(path, body)).json()
  const running = () => engine.state().reduce((sum, s) => sum + s.running, 0)

  it('/abort_request ends one request by its id, and all of them', async () => {
    const one = served.post('/generate', { ...long, rid: 'one' })
    const other = served.post('/generate', { ...long, rid: 'other' })
    await until(() => running() === 2, 'both run')
    expect(await post('/abort_request', { rid: 'one' })).toEqual({ success: true, aborted: 1 })
    expect((await one).status).toBe(503)
    expect(await post('/abort_request', { rid: 'never' })).toEqual({ success: true, aborted: 0 })
    expect(await post('/abort_request', { abort_all: true })).toEqual({ success: true, aborted: 1 })
    expect((await other).status).toBe(503)
    expect((await served.post('/abort_request', {})).status).toBe(400)
  })

  it('/pause_generation stops tokens until /continue_generation', async () => {
    await post('/pause_generation')
    let done = false
    const answer = served.json<Native>('/generate', { text: PROMPT, sampling_params: { max_new_tokens: 2 } })
    void answer.then(() => {
      done = true
    })
    await new Promise(resolve => setTimeout(resolve, 150))
    expect(done).toBe(false)
    const healthy = async () => {
      const response = await fetch(`${served.url}/health_generate`)
      return [response.status, await response.json()]
    }
    expect(await healthy()).toEqual([200, { status: 'paused' }])
    await post('/continue_generation')
    expect((await answer).output_ids).toHaveLength(2)
    expect(await healthy()).toEqual([200, { status: 'ready' }])
  })

  it('/flush_cache forgets prefixes', async () => {
    const prompt = 'A prefix that is long enough for more than one page of the cache, and then some more words.'
    const ask = () =>
      served.json<Native>('/generate', { text: prompt, sampling_params: { max_new_tokens: 1 }, routed_dp_rank: 0 })
    await ask()
    expect((await ask()).meta_info['cached_tokens']).toBeGreaterThan(0)
    expect((await post('/flush_cache')) as object).toMatchObject({ success: true })
    expect((await ask()).meta_info['cached_tokens']).toBe(0)
  })
})

describe('tokens', () => {
  it('go to ids and back', async () => {
    const { tokens, count } = await served.json<{ tokens: number[]; count: number }>('/tokenize', { prompt: PROMPT })
    expect([tokens, count]).toEqual([ids, ids.length])
    expect(await served.json('/detokenize', { tokens })).toMatchObject({ prompt: PROMPT, text: PROMPT })
    const pair = await served.json<{ tokens: number[][] }>('/v1/tokenize', { prompt: ['a', PROMPT] })
    expect(pair.tokens[1]).toEqual(ids)
    expect((await served.post('/detokenize', { tokens: [1 << 30] })).status).toBe(400)
  })

  it('of a long text come from another thread, and are the same', async () => {
    const text = 'The ships went out. '.repeat(2000)
    const here = engine.tokenizer!.encode(text, { addSpecialTokens: true })
    const there = await served.json<{ tokens: number[] }>('/tokenize', { prompt: text })
    expect(there.tokens).toEqual(here)
  })

  it('loads are told by DP rank', async () => {
    const loads = (await (await fetch(`${served.url}/v1/loads`)).json()) as {
      loads: { dp_rank: number; num_steps: number }[]
    }
    expect(loads.loads.map(l => l.dp_rank)).toEqual([0, 1])
    expect((await fetch(`${served.url}/v1/loads?dp_rank=2`)).status).toBe(400)
  })
})
