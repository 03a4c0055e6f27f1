// What bodies of requests mean and which are refused, over a real socket.
import { describe, expect, it } from 'vitest'
import { byteTokenizer } from '../../test/echo-engine.js'
import { errorOf } from '../../test/http-answers.js'
import { serveEcho } from '../../test/serve-echo.js'

describe('requests', () => {
  it('pass sampling on, with defaults of the model where the body is silent', async () => {
    await using echo = await serveEcho(
      {},
      { info: { generation_defaults: { temperature: 0.8, topP: 0.95, topK: 20 } } },
    )
    await echo.post('/v1/completions', { prompt: 'a', max_tokens: 1 })
    expect(echo.engine.requests.at(-1)!.sampling).toMatchObject({
      temperature: 0.8,
      topP: 0.95,
      topK: 20,
      minP: 0,
      seed: null,
      stop: [],
    })
    await echo.post('/v1/completions', {
      prompt: 'a',
      max_tokens: 1,
      temperature: 0,
      top_p: 1,
      top_k: -1,
      min_p: 0.1,
      seed: -1,
      stop: 'x',
      stop_token_ids: [5],
      ignore_eos: true,
    })
    expect(echo.engine.requests.at(-1)!.sampling).toEqual({
      temperature: 0,
      topP: 1,
      topK: 0,
      minP: 0.1,
      seed: 2n ** 64n - 1n,
      maxTokens: 1,
      stop: ['x'],
      stopTokenIds: [5],
      ignoreEos: true,
    })
  })

  it('treat null as absent and name the fields they ignore', async () => {
    await using echo = await serveEcho()
    const response = await echo.post('/v1/completions', {
      model: null,
      prompt: 'ab',
      max_tokens: null,
      temperature: null,
      logprobs: null,
      stop: null,
      stream: null,
      tea: 1,
      'bad\nname': 2,
      user: 'me',
    })
    expect(response.status).toBe(200)
    expect(response.headers.get('x-ignored-fields')).toBe('tea, bad?name')
    expect(echo.engine.requests.at(-1)!.sampling.maxTokens).toBe(16)
  })

  it.each([
    ['/v1/completions', { prompt: 'a', n: 0 }, 'n'],
    ['/v1/completions', { prompt: 'a', echo: 'yes' }, 'echo'],
    ['/v1/completions', { prompt: 'a', suffix: 'z' }, 'suffix'],
    ['/v1/completions', { prompt: 'a', logprobs: 6 }, 'logprobs'],
    ['/v1/completions', { prompt: 'a', best_of: 3 }, 'best_of'],
    ['/v1/completions', { prompt: 'a', logit_bias: { 5000: 1 } }, 'logit_bias'],
    ['/v1/completions', { prompt: 'a', presence_penalty: 2.5 }, 'presence_penalty'],
    ['/v1/completions', { prompt: 'a', logit_bias: { x: 1 } }, 'logit_bias.x'],
    ['/v1/completions', { prompt: 'a', stop_token_ids: [1, 259] }, 'stop_token_ids'],
    ['/v1/chat/completions', { messages: [{ role: 'user', content: 'a' }], stop_token_ids: [259] }, 'stop_token_ids'],
    ['/generate', { text: 'a', sampling_params: { stop_token_ids: [259] } }, 'sampling_params.stop_token_ids'],
    ['/v1/completions', { prompt: 'a', repetition_penalty: 0 }, 'repetition_penalty'],
    ['/v1/completions', { prompt: 'a', min_tokens: 9, max_tokens: 8 }, 'min_tokens'],
    ['/v1/completions', { prompt: 'a', prompt_logprobs: 1 }, 'prompt_logprobs'],
    ['/v1/chat/completions', { messages: [{ role: 'user', content: 'x' }], top_logprobs: 2 }, 'top_logprobs'],
    [
      '/v1/chat/completions',
      { messages: [{ role: 'user', content: 'x' }], logprobs: true, top_logprobs: 21 },
      'top_logprobs',
    ],
    ['/generate', {}, 'text'],
    ['/generate', { text: 'a', input_ids: [5] }, 'input_ids'],
    ['/generate', { input_ids: [9999] }, 'input_ids[0]'],
    ['/generate', { text: ['a', 'b'], rid: ['x'] }, 'rid'],
    ['/generate', { text: 'a', sampling_params: { top_p: 0 } }, 'sampling_params.top_p'],
    ['/generate', { text: 'a', sampling_params: { regex: 'a+' } }, 'sampling_params.regex'],
    ['/generate', { text: 'a', image_data: 'x' }, 'image_data'],
    ['/v1/completions', { prompt: 'a', top_p: 0 }, 'top_p'],
    ['/v1/completions', { prompt: 'a', temperature: 'hot' }, 'temperature'],
    ['/v1/completions', { prompt: 'a', max_tokens: 0 }, 'max_tokens'],
    ['/v1/completions', { prompt: 'a', max_tokens: 1.5 }, 'max_tokens'],
    ['/v1/completions', { prompt: 'a', stop: Array(17).fill('x') }, 'stop'],
    ['/v1/completions', {}, 'prompt'],
    ['/v1/completions', { prompt: [] }, 'prompt'],
    ['/v1/completions', { prompt: [1, 99_999] }, 'prompt[1]'],
    ['/v1/completions', { prompt: ['a', 5] }, 'prompt[1]'],
    ['/v1/completions', { prompt: [[1], []] }, 'prompt[1]'],
    ['/v1/completions', { prompt: 'a', model: 7 }, 'model'],
    ['/v1/chat/completions', {}, 'messages'],
    ['/v1/chat/completions', { messages: [] }, 'messages'],
    ['/v1/chat/completions', { messages: 'hi' }, 'messages'],
    ['/v1/chat/completions', { messages: [{ role: 'user' }] }, 'messages[0].content'],
    [
      '/v1/chat/completions',
      { messages: [{ role: 'user', content: [{ type: 'image_url' }] }] },
      'messages[0].content[0].type',
    ],
    ['/v1/chat/completions', { messages: [{ role: 'user', content: 'x' }], tools: [{}] }, 'tools'],
    [
      '/v1/chat/completions',
      { messages: [{ role: 'user', content: 'x' }], response_format: { type: 'json_object' } },
      'response_format',
    ],
    [
      '/v1/chat/completions',
      { messages: [{ role: 'assistant', content: null, tool_calls: [{}] }] },
      'messages[0].tool_calls',
    ],
  ])('%s refuses %j and names %s', async (path, body, param) => {
    await using echo = await serveEcho()
    const response = await echo.post(path, body)
    expect(response.status).toBe(400)
    expect(await errorOf(response)).toMatchObject({ param, type: 'invalid_request_error' })
    expect(echo.engine.requests).toEqual([])
    expect(echo.server.inFlight).toBe(0)
  })

  it('let values that ask for nothing pass', async () => {
    await using echo = await serveEcho()
    const body = {
      n: 1,
      best_of: 1,
      logprobs: false,
      logit_bias: {},
      presence_penalty: 0,
      response_format: { type: 'text' },
      tools: [],
      tool_choice: 'none',
    }
    expect(
      (await echo.post('/v1/chat/completions', { ...body, messages: [{ role: 'user', content: 'x' }], max_tokens: 1 }))
        .status,
    ).toBe(200)
  })

  it('say with numbers when prompt and output exceed the context', async () => {
    await using echo = await serveEcho({}, { contextLength: 20 })
    const tooMuch = await errorOf(await echo.post('/v1/completions', { prompt: 'abcd', max_tokens: 16 }))
    expect(tooMuch).toMatchObject({ code: 'context_length_exceeded', param: 'max_tokens' })
    expect(tooMuch.message).toMatch(/20 tokens.*needs 21.*5 of the prompt.*16 of the output/)
    expect((await echo.post('/v1/completions', { prompt: 'abcd', max_tokens: 15 })).status).toBe(200)
    expect(await errorOf(await echo.post('/v1/completions', { prompt: 'x'.repeat(20) }))).toMatchObject({
      param: 'prompt',
    })
  })

  it('need a tokenizer for text', async () => {
    await using echo = await serveEcho({}, { tokenizer: null })
    expect(await errorOf(await echo.post('/v1/completions', { prompt: 'a' }))).toMatchObject({
      code: 'SY_HTTP_NO_TOKENIZER',
    })
    const chat = await echo.post('/v1/chat/completions', { messages: [{ role: 'user', content: 'x' }] })
    expect(await errorOf(chat)).toMatchObject({ code: 'SY_HTTP_NO_TOKENIZER', param: 'messages' })
    await using mute = await serveEcho({}, { tokenizer: { ...byteTokenizer, hasChatTemplate: false } })
    const none = await mute.post('/v1/chat/completions', { messages: [{ role: 'user', content: 'x' }] })
    expect(await errorOf(none)).toMatchObject({ code: 'SY_HTTP_NO_CHAT_TEMPLATE' })
  })
})
