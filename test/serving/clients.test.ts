// The AI SDK and LangChain against a real server: chat, stream, usage, log-probabilities, stop, n, errors, abort.
// The openai client has a suite of its own beside the server.
import { createOpenAICompatible } from '@ai-sdk/openai-compatible'
import { ChatOpenAI } from '@langchain/openai'
import { APICallError, generateText, streamText } from 'ai'
import OpenAI from 'openai'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { type EchoServer, serveEcho, until } from '../serve-echo.js'

let echo: EchoServer
beforeAll(async () => {
  echo = await serveEcho({ apiKey: 'secret' }, { stepMs: 1 })
})
afterAll(() => echo[Symbol.asyncDispose]())

const quiet = async () => {
  await until(() => echo.engine.state()[0]!.running === 0, 'the engine stopped')
  await until(() => echo.server.inFlight === 0, 'the ticket is back')
}

describe('the AI SDK', () => {
  const model = () =>
    createOpenAICompatible({
      name: 'switchyard',
      baseURL: `${echo.server.url}/v1`,
      apiKey: 'secret',
      includeUsage: true,
    })

  it('generates text with usage and a reason', async () => {
    const { text, usage, finishReason } = await generateText({
      model: model()('echo'),
      prompt: 'abc',
      maxOutputTokens: 8,
      maxRetries: 0,
    })
    expect([text, finishReason]).toEqual(['user: ab', 'length'])
    expect(usage).toMatchObject({ outputTokens: 8 })
    expect(usage.inputTokens).toBe(echo.engine.requests.at(-1)!.inputIds.length)
  })

  it('streams the same text, with usage', async () => {
    const result = streamText({ model: model()('echo'), prompt: 'abc', maxOutputTokens: 8, maxRetries: 0 })
    const parts: string[] = []
    for await (const part of result.textStream) parts.push(part)
    expect(parts.join('')).toBe('user: ab')
    expect(parts.length).toBeGreaterThan(1)
    expect((await result.usage).outputTokens).toBe(8)
    expect(await result.finishReason).toBe('length')
  })

  it('passes settings on', async () => {
    await generateText({
      model: model()('echo'),
      prompt: 'x',
      maxOutputTokens: 1,
      temperature: 0.5,
      topP: 0.9,
      seed: 7,
      stopSequences: ['END'],
      frequencyPenalty: 0.5,
      presencePenalty: -0.5,
      maxRetries: 0,
    })
    expect(echo.engine.requests.at(-1)!.sampling).toMatchObject({
      temperature: 0.5,
      topP: 0.9,
      seed: 7n,
      stop: ['END'],
      frequencyPenalty: 0.5,
      presencePenalty: -0.5,
    })
  })

  it('continues completions', async () => {
    const { text } = await generateText({
      model: model().completionModel('echo'),
      prompt: 'hello',
      maxOutputTokens: 4,
      maxRetries: 0,
    })
    expect(text).toHaveLength(3)
  })

  it('raises errors with status and message', async () => {
    const wrong = generateText({ model: model()('nope'), prompt: 'x', maxRetries: 0 })
    const error = await wrong.catch((e: unknown) => e)
    expect(APICallError.isInstance(error)).toBe(true)
    expect(error).toMatchObject({ statusCode: 404, message: expect.stringContaining('not served here') })
  })

  it('frees the request at an abort', async () => {
    const controller = new AbortController()
    const result = streamText({
      model: model()('echo'),
      prompt: 'long',
      abortSignal: controller.signal,
      onError: () => {},
    })
    for await (const _ of result.textStream) {
      controller.abort()
      break
    }
    await quiet()
  })
})

describe('LangChain', () => {
  const model = (fields: object = {}) =>
    new ChatOpenAI({
      model: 'echo',
      apiKey: 'secret',
      maxRetries: 0,
      maxTokens: 8,
      configuration: { baseURL: `${echo.server.url}/v1` },
      ...fields,
    })

  it('invokes, with usage and a reason', async () => {
    const answer = await model().invoke('abc')
    expect(answer.content).toBe('user: ab')
    expect(answer.usage_metadata).toMatchObject({ output_tokens: 8 })
    expect(answer.response_metadata['finish_reason']).toBe('length')
  })

  it('streams the same text, with usage', async () => {
    let text = ''
    let tokens = 0
    for await (const chunk of await model({ streamUsage: true }).stream('abc')) {
      text += String(chunk.content)
      tokens += (chunk.usage_metadata as { output_tokens: number } | undefined)?.output_tokens ?? 0
    }
    expect([text, tokens]).toEqual(['user: ab', 8])
  })

  it('makes n choices, passes stop on, and takes batches', async () => {
    const { generations } = await model({ n: 2 }).generate([['abc']])
    expect(generations[0]!.map(g => g.text)).toEqual(['user: ab', 'user: ab'])
    await model({ stop: ['END'] }).invoke('x')
    expect(echo.engine.requests.at(-1)!.sampling.stop).toEqual(['END'])
    const answers = await model().batch(['a', 'b', 'c'])
    expect(answers.map(a => a.content)).toEqual(['user: a\n', 'user: b\n', 'user: c\n'])
  })

  it('raises errors, and frees the request at an abort', async () => {
    await expect(model({ model: 'nope' }).invoke('x')).rejects.toMatchObject({ status: 404 })
    await expect(model({ apiKey: 'wrong' }).invoke('x')).rejects.toMatchObject({ status: 401 })
    const controller = new AbortController()
    const pending = model({ maxTokens: 200 }).invoke('long', { signal: controller.signal })
    await until(() => echo.engine.state()[0]!.running === 1, 'it runs')
    controller.abort()
    await expect(pending).rejects.toThrow(/abort/i)
    await quiet()
  })
})

describe('the openai client', () => {
  it('gets choices, and errors with the field', async () => {
    const client = new OpenAI({ baseURL: `${echo.server.url}/v1`, apiKey: 'secret', maxRetries: 0 })
    const { choices, usage } = await client.chat.completions.create({
      model: 'echo',
      messages: [{ role: 'user', content: 'abc' }],
      n: 3,
      max_tokens: 8,
    })
    expect(choices.map(c => [c.index, c.message.content])).toEqual([0, 1, 2].map(i => [i, 'user: ab']))
    expect(usage).toMatchObject({ completion_tokens: 24 })
    const tools = client.chat.completions.create({
      model: 'echo',
      messages: [{ role: 'user', content: 'abc' }],
      tools: [{ type: 'function', function: { name: 'f' } }],
    })
    await expect(tools).rejects.toMatchObject({ status: 400, param: 'tools' })
  })
})
