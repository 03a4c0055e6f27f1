// The bytes of streams, over a real socket: order of chunks, usage, pings, errors in the middle.
import { describe, expect, it } from 'vitest'
import { readEvents } from '../../test/http-answers.js'
import { serveEcho } from '../../test/serve-echo.js'

describe('stream bytes', () => {
  it('follow the rules that clients break on', async () => {
    await using echo = await serveEcho()
    const response = await echo.post('/v1/chat/completions', {
      messages: [{ role: 'user', content: '€' }],
      max_tokens: 9,
      stream: true,
      stream_options: { include_usage: true },
    })
    expect(response.headers.get('content-type')).toContain('text/event-stream')
    const events = await readEvents(response)
    expect(events.at(-1)).toBe('[DONE]')
    const chunks = events.slice(0, -1).map(e => JSON.parse(e))
    expect(new Set(chunks.map(c => c.id)).size).toBe(1)
    expect(new Set(chunks.map(c => c.created)).size).toBe(1)
    expect(chunks[0].choices[0].delta).toEqual({ role: 'assistant', content: '' })
    const withChoices = chunks.filter(c => c.choices.length > 0)
    expect(withChoices.every(c => 'finish_reason' in c.choices[0] && c.usage === null)).toBe(true)
    expect(withChoices.filter(c => c.choices[0].finish_reason !== null)).toEqual([withChoices.at(-1)])
    expect(chunks.at(-1)).toMatchObject({ choices: [], usage: { prompt_tokens: 21, completion_tokens: 9 } })
    expect(withChoices.map(c => c.choices[0].delta.content ?? '').join('')).toBe('user: €')
  })

  it('hold no usage unless it was asked for, and end with an error event when the engine breaks', async () => {
    await using echo = await serveEcho()
    const good = await readEvents(await echo.post('/v1/completions', { prompt: 'ab', max_tokens: 3, stream: true }))
    expect(good.some(e => e.includes('usage'))).toBe(false)
    const bad = await readEvents(await echo.post('/v1/completions', { prompt: 'FAIL', max_tokens: 9, stream: true }))
    expect(JSON.parse(bad.at(-1)!)).toMatchObject({
      error: { code: 'SY_ECHO_BROKE', type: 'server_error', param: null },
    })
    expect(bad).not.toContain('[DONE]')
  })

  it('ping while nothing comes', async () => {
    await using echo = await serveEcho({}, { stepMs: 250, pingMs: 30 })
    const events = await readEvents(await echo.post('/v1/completions', { prompt: 'ab', max_tokens: 4, stream: true }))
    expect(events.filter(e => e === ':ping').length).toBeGreaterThan(0)
    expect(events.at(-1)).toBe('[DONE]')
  })

  it('carry token ids when asked, also without a tokenizer', async () => {
    await using echo = await serveEcho({}, { tokenizer: null })
    const events = await readEvents(
      await echo.post('/v1/completions', { prompt: [1, 2], max_tokens: 3, stream: true, return_token_ids: true }),
    )
    const ids = events.slice(0, -1).flatMap(e => JSON.parse(e).choices[0].token_ids ?? [])
    expect(ids).toEqual([1, 2, 1])
  })
})
