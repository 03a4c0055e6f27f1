// The openai npm client against the installed command: `switchyard serve models/demo` on two ranks in a process of its own.
// Texts equal the reference's, streamed or not; a stream that its client leaves holds no KV pages.
import { type ChildProcess, spawn } from 'node:child_process'
import { once } from 'node:events'
import { readFileSync } from 'node:fs'
import OpenAI, { BadRequestError } from 'openai'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import type { DpRankState } from '../../src/engine/index.js'

const references = JSON.parse(readFileSync('models/demo/reference.json', 'utf8')) as {
  readonly prompt: string
  readonly ids: number[]
  readonly text: string
}[]
const story = references[0]!

let child: ChildProcess
let url: string
let client: OpenAI

beforeAll(async () => {
  const layout = ['--tp-size', '2', '--attn-dp-size', '2', '--ep-size', '2', '--dtype', 'float32']
  const args = ['bin/switchyard.js', 'serve', 'models/demo', ...layout, '--context-length', '1024', '--port', '0']
  child = spawn(process.execPath, args, { env: { ...process.env, NO_COLOR: '1' } })
  url = await new Promise<string>((resolve, reject) => {
    let [out, err] = ['', '']
    child.stdout!.on('data', (data: Buffer) => {
      out += data.toString()
      const found = /(http:\S+)\/v1/.exec(out)
      if (found) resolve(found[1]!)
    })
    child.stderr!.on('data', (data: Buffer) => {
      err += data.toString()
    })
    child.on('exit', code => reject(new Error(`serve ended with ${code}: ${err}`)))
  })
  client = new OpenAI({ baseURL: `${url}/v1`, apiKey: 'none', maxRetries: 0 })
})
afterAll(() => {
  child?.kill('SIGKILL')
})

const greedy = { model: 'demo', temperature: 0, max_tokens: 48 } as const

const states = async (): Promise<readonly DpRankState[]> =>
  ((await (await fetch(`${url}/server_info`)).json()) as { internal_states: DpRankState[] }).internal_states

async function untilFree(): Promise<readonly DpRankState[]> {
  const end = performance.now() + 5000
  let now = await states()
  while (now.some(s => s.running + s.waiting + s.usedTokens > 0) && performance.now() < end) now = await states()
  return now
}

describe('the openai client', () => {
  it('completes every reference prompt, all at once, as text and as token ids', async () => {
    const asked = references.flatMap(({ prompt, ids }) => [prompt, ids])
    const answers = await Promise.all(asked.map(prompt => client.completions.create({ ...greedy, prompt })))
    const expected = references.flatMap(({ text }) => [text, text])
    expect(answers.map(a => a.choices[0]!.text)).toEqual(expected)
    expect(answers[0]!.usage).toMatchObject({ prompt_tokens: story.ids.length, completion_tokens: 48 })
    expect(answers[0]!.choices[0]!.finish_reason).toBe('length')
  })

  it('streams the same text, ends it at stop texts', async () => {
    const stream = await client.completions.create({
      ...greedy,
      prompt: story.prompt,
      stop: ['village, and'],
      stream: true,
      stream_options: { include_usage: true },
    })
    let [text, reason, tokens] = ['', '', 0]
    for await (const chunk of stream) {
      text += chunk.choices[0]?.text ?? ''
      reason = chunk.choices[0]?.finish_reason ?? reason
      tokens = chunk.usage?.completion_tokens ?? tokens
    }
    expect(text).toBe(story.text.slice(0, story.text.indexOf('village, and')))
    expect(reason).toBe('stop')
    expect(tokens).toBeGreaterThan(0)
    expect(tokens).toBeLessThan(48)
  })

  it('chats, streamed and not, with the same text for a seed', async () => {
    const body = {
      model: 'demo',
      messages: [{ role: 'user' as const, content: 'Tell me about the sea' }],
      max_tokens: 24,
      temperature: 0.9,
    }
    const whole = await client.chat.completions.create({ ...body, seed: 11 })
    const [message, other] = await Promise.all([
      client.chat.completions.stream({ ...body, seed: 11 }).finalMessage(),
      client.chat.completions.create({ ...body, seed: 12 }),
    ])
    expect(whole.choices[0]!.message.role).toBe('assistant')
    expect(whole.usage!.completion_tokens).toBeGreaterThan(0)
    expect(message.content).toBe(whole.choices[0]!.message.content)
    expect(other.choices[0]!.message.content).not.toBe(whole.choices[0]!.message.content)
  })

  it('gets refusals as errors of its own, and nothing runs for them', async () => {
    const before = (await untilFree()).map(s => s.steps)
    const ask = (body: object) => client.completions.create({ ...greedy, prompt: 'a', ...body })
    await expect(ask({ max_tokens: 5000 })).rejects.toBeInstanceOf(BadRequestError)
    await expect(ask({ prompt: [9000] })).rejects.toBeInstanceOf(BadRequestError)
    await expect(ask({ top_p: 0 })).rejects.toBeInstanceOf(BadRequestError)
    expect((await states()).map(s => s.steps)).toEqual(before)
  })

  it('leaves a stream: both ranks are free at once and go on serving', async () => {
    const endless = { ...greedy, max_tokens: 900, stream: true, ignore_eos: true } as const
    const left = ['Once', 'import', 'class'].map(async prompt => {
      const stream = await client.completions.create({ ...endless, prompt })
      let seen = 0
      for await (const _ of stream) if (++seen === 4) break
      return seen
    })
    expect(await Promise.all(left)).toEqual([4, 4, 4])
    expect((await untilFree()).map(s => [s.running, s.waiting, s.usedTokens])).toEqual([
      [0, 0, 0],
      [0, 0, 0],
    ])
    const answer = await client.completions.create({ ...greedy, prompt: story.prompt })
    expect(answer.choices[0]!.text).toBe(story.text)
  })

  it('finishes what runs at Ctrl-C, then the process ends with 0', async () => {
    const ended = once(child, 'exit')
    const running = client.completions.create({ ...greedy, prompt: story.prompt, max_tokens: 300 })
    const end = performance.now() + 5000
    while (!(await states()).some(s => s.running > 0) && performance.now() < end);
    child.kill('SIGINT')
    const [answer, [code]] = await Promise.all([running, ended])
    expect(answer.choices[0]!.text.startsWith(story.text)).toBe(true)
    expect(answer.choices[0]!.finish_reason).toBe('length')
    expect(code).toBe(0)
  })
})
