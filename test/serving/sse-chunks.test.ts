// The bytes of streams, cut anywhere: a strict parser reads the same events however the network cuts them, and every
// stream keeps the rules that clients break on.
import { createParser } from 'eventsource-parser'
import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { serveEcho } from '../serve-echo.js'

const STREAMS: readonly (readonly [string, object])[] = [
  ['/v1/completions', { prompt: ['añ💥b\r\n\n', 'data: x\n\n'], max_tokens: 30, n: 2, stream: true }],
  [
    '/v1/chat/completions',
    {
      messages: [{ role: 'user', content: '💥\u2028é\n\ndata: [DONE]\n\n' }],
      max_tokens: 60,
      stream: true,
      stream_options: { include_usage: true },
    },
  ],
  ['/generate', { text: 'a\n\nb: c', sampling_params: { max_new_tokens: 20 }, stream: true }],
  ['/v1/completions', { prompt: 'FAIL', max_tokens: 9, stream: true }],
]

/** Events of `bytes` fed to the parser in pieces that end at `cuts`. */
function parse(bytes: Uint8Array, cuts: readonly number[]): string[] {
  const events: string[] = []
  const parser = createParser({
    onEvent: event => events.push(event.data),
    onError: error => {
      throw error
    },
  })
  const decoder = new TextDecoder()
  let from = 0
  for (const cut of [...cuts, bytes.length]) {
    parser.feed(decoder.decode(bytes.subarray(from, cut), { stream: true }))
    from = cut
  }
  return events
}

describe('streams cut into random pieces', () => {
  it.each(STREAMS)('%s %j', async (path, body) => {
    await using echo = await serveEcho()
    const bytes = new Uint8Array(await (await echo.post(path, body)).arrayBuffer())
    const whole = parse(bytes, [])
    expect(whole.length).toBeGreaterThan(1)
    fc.assert(
      fc.property(fc.uniqueArray(fc.nat({ max: bytes.length }), { maxLength: 60 }), cuts => {
        expect(
          parse(
            bytes,
            cuts.sort((a, b) => a - b),
          ),
        ).toEqual(whole)
      }),
      { numRuns: 60 },
    )
    const failed = whole.at(-1) !== '[DONE]'
    expect(failed).toBe(JSON.stringify(body).includes('FAIL'))
    const chunks = (failed ? whole : whole.slice(0, -1)).map(data => JSON.parse(data) as Record<string, unknown>)
    if (failed) expect(chunks.at(-1)).toHaveProperty('error.message')
    if (path === '/generate' || failed) return
    expect(new Set(chunks.map(c => `${c['id']} ${c['created']}`)).size).toBe(1)
    const choices = chunks.flatMap(c => c['choices'] as { index: number; finish_reason: string | null }[])
    for (const index of new Set(choices.map(c => c.index))) {
      const reasons = choices.filter(c => c.index === index).map(c => c.finish_reason)
      expect(reasons.filter(reason => reason !== null)).toEqual(['length'])
      expect(reasons.at(-1)).toBe('length')
    }
  })
})
