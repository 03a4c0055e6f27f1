// The openai npm client against a real server on a real socket.
import OpenAI, {
  AuthenticationError,
  BadRequestError,
  InternalServerError,
  NotFoundError,
  UnprocessableEntityError,
} from 'openai'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { type EchoServer, serveEcho, until } from '../../test/serve-echo.js'

let echo: EchoServer
let client: OpenAI
beforeAll(async () => {
  echo = await serveEcho({ apiKey: 'secret' }, { stepMs: 1 })
  client = new OpenAI({ baseURL: `${echo.server.url}/v1`, apiKey: 'secret', maxRetries: 0 })
})
afterAll(() => echo[Symbol.asyncDispose]())

describe('completions', () => {
  it('answer with text, reason and usage', async () => {
    const answer = await client.completions.create({ model: 'echo', prompt: 'abc', max_tokens: 6 })
    // The prompt is bos a b c; the echo says it again, and bos is no text.
    expect(answer.choices).toEqual([{ index: 0, text: 'abca', logprobs: null, finish_reason: 'length' }])
    expect(answer.usage).toMatchObject({ prompt_tokens: 4, completion_tokens: 6, total_tokens: 10 })
    expect(answer.object).toBe('text_completion')
    expect(answer.id).toMatch(/^cmpl-/)
  })

  it('take batches of text and of token ids, in order', async () => {
    const texts = await client.completions.create({ model: 'echo', prompt: ['ab', 'wxyz'], max_tokens: 4 })
    expect(texts.choices.map(c => [c.index, c.text])).toEqual([
      [0, 'ab'],
      [1, 'wxy'],
    ])
    expect(texts.usage).toMatchObject({ prompt_tokens: 8, completion_tokens: 8 })
    const ids = await client.completions.create({ model: 'echo', prompt: [[100, 101], [102]], max_tokens: 2 })
    expect(ids.choices.map(c => c.text)).toEqual(['ab', 'cc'])
    const one = await client.completions.create({ model: 'echo', prompt: [100, 101], max_tokens: 2 })
    expect(one.choices[0]?.text).toBe('ab')
  })

  it('stream the same text, batches included', async () => {
    const stream = await client.completions.create({
      model: 'echo',
      prompt: ['añb', 'xy'],
      max_tokens: 6,
      stream: true,
      stream_options: { include_usage: true },
    })
    const text = ['', '']
    const reasons: (string | null)[] = []
    let usage: unknown = null
    for await (const chunk of stream) {
      for (const choice of chunk.choices) {
        text[choice.index] += choice.text
        if (choice.finish_reason) reasons.push(choice.finish_reason)
      }
      if (chunk.choices.length === 0) usage = chunk.usage
    }
    expect(text).toEqual(['añb', 'xyxy'])
    expect(reasons).toEqual(['length', 'length'])
    expect(usage).toMatchObject({ prompt_tokens: 8, completion_tokens: 12 })
  })
})

describe('chat', () => {
  it('renders messages and answers as the assistant', async () => {
    const answer = await client.chat.completions.create({
      model: 'echo',
      max_completion_tokens: 9,
      messages: [
        { role: 'developer', content: 'Be brief.' },
        {
          role: 'user',
          content: [
            { type: 'text', text: 'H' },
            { type: 'text', text: 'i' },
          ],
        },
      ],
    })
    expect(answer.choices[0]?.message).toEqual({ role: 'assistant', content: 'system: B', refusal: null })
    expect(answer.choices[0]?.finish_reason).toBe('length')
    const sent = echo.engine.requests.at(-1)!
    expect(echo.engine.tokenizer?.decode(sent.inputIds)).toBe('system: Be brief.\nuser: Hi\nassistant: ')
    expect(sent.inputIds[0]).not.toBe(0)
  })

  it('uses what the context has left when no limit is given', async () => {
    await client.chat.completions.create({ model: 'echo', messages: [{ role: 'user', content: 'x' }] })
    const sent = echo.engine.requests.at(-1)!
    expect(sent.sampling.maxTokens).toBe(256 - sent.inputIds.length)
  })

  it('works with the stream helper, which insists on roles and finish reasons', async () => {
    const stream = client.chat.completions.stream({
      model: 'echo',
      messages: [{ role: 'user', content: 'x' }],
      max_tokens: 6,
      stream_options: { include_usage: true },
    })
    const final = await stream.finalChatCompletion()
    expect(final.choices[0]?.message.content).toBe('user: ')
    expect(final.choices[0]?.message.role).toBe('assistant')
    expect((await stream.totalUsage()).completion_tokens).toBe(6)
  })

  it('frees the request at once when the client aborts the stream', async () => {
    const stream = await client.chat.completions.create({
      model: 'echo',
      messages: [{ role: 'user', content: 'long' }],
      stream: true,
    })
    let seen = 0
    for await (const _ of stream) if (++seen === 3) break
    await until(() => echo.engine.state()[0]!.running === 0, 'the engine stopped')
    await until(() => echo.server.inFlight === 0, 'the ticket is back')
    expect(echo.engine.requests.at(-1)!.signal?.aborted).toBe(true)
  })

  it('frees a request that does not stream when its client leaves', async () => {
    const controller = new AbortController()
    const pending = client.chat.completions.create(
      { model: 'echo', messages: [{ role: 'user', content: 'long' }] },
      { signal: controller.signal },
    )
    await until(() => echo.engine.state()[0]!.running === 1, 'it runs')
    controller.abort()
    await expect(pending).rejects.toThrow(/abort/i)
    await until(() => echo.engine.state()[0]!.running === 0, 'the engine stopped')
    expect(echo.engine.requests.at(-1)!.signal?.aborted).toBe(true)
  })
})

describe('models and errors', () => {
  it('lists the model and finds it', async () => {
    const models = await client.models.list()
    expect(models.data.map(m => m.id)).toEqual(['echo'])
    expect((await client.models.retrieve('echo')).object).toBe('model')
    await expect(client.models.retrieve('gpt-4')).rejects.toBeInstanceOf(NotFoundError)
  })

  it('raises the client classes', async () => {
    const ask = (body: Record<string, unknown>) =>
      client.completions.create({ model: 'echo', prompt: 'a', ...body } as OpenAI.CompletionCreateParamsNonStreaming)
    await expect(ask({ temperature: -1 })).rejects.toBeInstanceOf(BadRequestError)
    await expect(ask({ temperature: -1 })).rejects.not.toBeInstanceOf(UnprocessableEntityError)
    await expect(ask({ model: 'nope' })).rejects.toMatchObject({ status: 404, code: 'model_not_found', param: 'model' })
    await expect(ask({ prompt: 'REFUSE' })).rejects.toMatchObject({ status: 400, code: 'SY_ECHO_REFUSED' })
    await expect(ask({ prompt: 'BUG' })).rejects.toBeInstanceOf(InternalServerError)
    await expect(ask({ prompt: 'BUG' })).rejects.not.toThrow(/undefined is not a function/)
    const stranger = new OpenAI({ baseURL: `${echo.server.url}/v1`, apiKey: 'wrong', maxRetries: 0 })
    await expect(stranger.models.list()).rejects.toBeInstanceOf(AuthenticationError)
  })

  it('raises an error in the middle of a stream', async () => {
    const stream = await client.completions.create({ model: 'echo', prompt: 'FAIL', max_tokens: 9, stream: true })
    let text = ''
    const read = async () => {
      for await (const chunk of stream) text += chunk.choices[0]?.text ?? ''
    }
    await expect(read()).rejects.toThrow(/the echo broke/)
    expect(text).toBe('F')
    await until(() => echo.server.inFlight === 0, 'the ticket is back')
  })

  it('says an error before the first token with its status, even when streaming', async () => {
    await expect(client.completions.create({ model: 'echo', prompt: 'REFUSE', stream: true })).rejects.toMatchObject({
      status: 400,
      param: 'prompt',
    })
  })
})
