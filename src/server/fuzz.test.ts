// 1,000 mutated bodies, 10,000 in a full run (fixed seed), against a real server: the status is always a right one, the error always has OpenAI's
// shape, nothing of our insides leaks, nothing is left running, and the server goes on.
import { describe, expect, it } from 'vitest'
import { serveEcho, until } from '../../test/serve-echo.js'
import { CounterRandom, STREAM } from '../runtime/random.js'

const random = new CounterRandom(20_251, STREAM.benchmark)
const pick = <T>(list: readonly T[]): T => list[random.below(list.length)]!

const SEEDS: readonly (readonly [string, Record<string, unknown>])[] = [
  ['/v1/completions', { model: 'echo', prompt: 'abc', max_tokens: 4, temperature: 0, stop: ['x'], seed: 1 }],
  ['/v1/completions', { prompt: ['a', 'b'], max_tokens: 2, stream: true, stream_options: { include_usage: true } }],
  ['/v1/completions', { prompt: [5, 6, 7], top_k: 3, min_p: 0.1, top_p: 0.5, ignore_eos: true }],
  ['/v1/chat/completions', { messages: [{ role: 'user', content: 'hi' }], max_completion_tokens: 3 }],
  [
    '/v1/chat/completions',
    { messages: [{ role: 'user', content: [{ type: 'text', text: 'x' }] }], max_tokens: 2, stream: true, n: 1 },
  ],
  [
    '/v1/completions',
    { prompt: 'abc', echo: true, logprobs: 2, n: 2, min_tokens: 1, logit_bias: { 5: 1 }, max_tokens: 3 },
  ],
  [
    '/v1/chat/completions',
    { messages: [{ role: 'user', content: 'x' }], logprobs: true, top_logprobs: 2, max_tokens: 2 },
  ],
  ['/generate', { text: 'abc', sampling_params: { max_new_tokens: 2, temperature: 0 }, return_logprob: true }],
  [
    '/generate',
    { input_ids: [[5], [6]], sampling_params: [{ max_new_tokens: 1 }, { max_new_tokens: 2 }], stream: true },
  ],
  ['/tokenize', { prompt: 'abc', add_special_tokens: true }],
  ['/detokenize', { tokens: [5, 6] }],
]

const ODD: readonly unknown[] = [
  null,
  true,
  false,
  0,
  -1,
  1.5,
  1e308,
  -0,
  2 ** 54,
  2 ** 32,
  '',
  'x',
  '\u0000',
  '\ud800',
  'null',
  '💥'.repeat(50),
  [],
  [[]],
  [null],
  [1, 'a'],
  ['a', [1]],
  [[-1]],
  [[1e9]],
  {},
  { a: 1 },
  { toString: 1 },
  [[[1]]],
  'FAIL',
  'BUG',
  'REFUSE',
  ['FAIL', 'abc'],
  Array(300).fill(7),
  Array(300).fill('z'),
  { type: 'text' },
  [{ role: 'user' }],
  [{ role: 1, content: 2 }],
  [{ role: 'user', content: [{}] }],
  [{ role: 'user', content: [{ type: 'image_url', image_url: {} }] }],
  [null, { role: 'user', content: 'x' }],
  'x'.repeat(5000),
]
const FIELDS = [
  'model',
  'prompt',
  'messages',
  'max_tokens',
  'max_completion_tokens',
  'temperature',
  'top_p',
  'top_k',
  'min_p',
  'seed',
  'stop',
  'stop_token_ids',
  'stream',
  'stream_options',
  'n',
  'logprobs',
  'tools',
  'response_format',
  'chat_template_kwargs',
  'routed_dp_rank',
  'return_token_ids',
  '__proto__',
  'constructor',
  'toString',
  'logit_bias',
  'echo',
  'suffix',
  'presence_penalty',
  'repetition_penalty',
  'min_tokens',
  'top_logprobs',
  'text',
  'input_ids',
  'tokens',
  'sampling_params',
  'return_logprob',
  'logprob_start_len',
  'rid',
  'unknown_field',
  'x\ny',
]

/** A body as text: fields replaced, dropped or added; sometimes the text itself is damaged. */
function mutate(seed: Record<string, unknown>): string {
  const entries = Object.entries(seed)
  for (let times = 1 + random.below(3); times > 0; times--) {
    const action = random.below(4)
    if (action === 0 && entries.length > 0) entries.splice(random.below(entries.length), 1)
    else if (action === 1 && entries.length > 0) entries[random.below(entries.length)]![1] = pick(ODD)
    else entries.push([pick(FIELDS), pick(ODD)])
  }
  let text = `{${entries.map(([key, value]) => `${JSON.stringify(key)}:${JSON.stringify(value)}`).join(',')}}`
  if (random.below(8) === 0) text = text.slice(0, random.below(text.length))
  if (random.below(8) === 0) {
    const at = random.below(text.length + 1)
    text = text.slice(0, at) + pick(['"', '{', ']', ',', '\u0000', '1e999', '//', 'NaN']) + text.slice(at)
  }
  return text
}

const COUNT = process.env['SWITCHYARD_TEST_FULL'] ? 10_000 : 1000

describe('mutated bodies', () => {
  it(`${COUNT} of them never upset the server`, async () => {
    await using echo = await serveEcho({ maxBodyBytes: 4096 })
    const statuses = new Map<number, number>()
    for (let i = 0; i < COUNT; i++) {
      const [path, seed] = pick(SEEDS)
      const body = mutate(seed)
      const response = await echo.post(path, body)
      const text = await response.text()
      statuses.set(response.status, (statuses.get(response.status) ?? 0) + 1)
      expect([200, 400, 404, 413, 500], body).toContain(response.status)
      expect(text, body).not.toMatch(/\n\s+at |node_modules|\.ts:\d|undefined is not/)
      if (response.status === 200) continue
      const { error } = JSON.parse(text) as { error: Record<string, unknown> }
      expect(Object.keys(error).sort(), body).toEqual(['code', 'message', 'param', 'type'])
      // 500 only where the echo was told to break.
      if (response.status === 500) expect(body).toMatch(/FAIL|BUG/)
    }
    // The mutations reach both sides of the checks.
    expect(statuses.get(200) ?? 0).toBeGreaterThan(50)
    expect(statuses.get(400) ?? 0).toBeGreaterThan(200)
    await until(() => echo.server.inFlight === 0 && echo.engine.state()[0]!.running === 0, 'nothing is left')
    expect((await fetch(`${echo.server.url}/health`)).status).toBe(200)
  }, 600_000)
})
