// Failure drills through a real `switchyard serve`: what clients are told, what /health says, how the process ends.
import { describe, expect, it } from 'vitest'
import { complete, ServeProcess, watchHealth } from '../serve-process.js'
import { Deadline } from './deadline.js'
import { DIST_TIMEOUT } from './drill-points.js'
import { fixturePath } from './harness.js'

const LAYOUT = ['--tp-size', '4', '--attn-dp-size', '2', '--ep-size', '4']
const serve = (drill: Readonly<Record<string, unknown>>, ...more: readonly string[]): ServeProcess =>
  new ServeProcess([
    fixturePath('deepseek_v3'),
    ...LAYOUT,
    ...['--dist-timeout', String(DIST_TIMEOUT), '--failure-drill', JSON.stringify(drill), ...more],
  ])

/** Longer than any drill's step. */
const request = (i: number, stream: boolean) => ({
  prompt: Array.from({ length: 1 + ((i * 7) % 30) }, (_, t) => 3 + ((t * 11 + i) % 150)),
  max_tokens: 60,
  ignore_eos: true,
  // Without a tokenizer there is no text to stream.
  return_token_ids: true,
  stream,
})

/** From the first error that a client sees to the end of the process. */
const EXIT_MS = 1000 * (DIST_TIMEOUT + 3)

const CASES = [
  {
    kind: 'throw',
    rank: 3,
    step: 9,
    operation: 30,
    told: /rank 3 failed in step \d+, layer [01], operation 30 \(.+\)/,
  },
  { kind: 'exit', rank: 0, step: 5, operation: 12, told: /rank 0 is gone .* layer 0, operation 12 \(.+\)/ },
  { kind: 'stall', rank: 2, step: 7, operation: 36, told: /rank 2 has not moved .* layer 1, operation 36 \(.+\)/ },
  { kind: 'wrong_rows', rank: 1, step: 6, operation: 20, told: /layer \d, operation \d+\): rows is .* rank 1/ },
  {
    kind: 'wrong_plan',
    rank: 3,
    step: 8,
    operation: 0,
    told: /previous_plan_hash is .* on ranks 0, 1, 2; .* on rank 3/,
  },
] as const

describe('a server whose rank fails', () => {
  it.each(CASES)('$kind: everyone is told, /health says 503, the process ends with 1', async ({ told, ...drill }) => {
    await using server = serve(drill)
    const url = (await Deadline.of(server.url(), 'the start'))!
    const health = watchHealth(url)
    let firstError = Number.POSITIVE_INFINITY
    const answers = await Deadline.of(
      Promise.all(
        Array.from({ length: 12 }, async (_, i) => {
          const answer = await complete(url, request(i, i % 2 === 0))
          firstError = Math.min(firstError, performance.now())
          return answer
        }),
      ),
      'the answers',
    )
    for (const [i, { status, error, text }] of answers.entries()) {
      if (i % 2 === 1) expect(status, text).toBe(503)
      expect(error?.message, text).toMatch(told)
      expect(error?.code).toMatch(/^SY_(RANK_\w+|HTTP_ENGINE_FAILED)$/)
      expect(text).not.toMatch(/\n\s+at /)
    }
    const { code, signal, at } = await Deadline.of(server.exit, 'the process')
    expect({ code, signal }).toEqual({ code: 1, signal: null })
    expect(at - firstError).toBeLessThan(EXIT_MS)
    expect(await health).toEqual([200, 503])
    expect(server.stderr).toMatch(told)
    expect(server.stderr).toMatch(/^error SY_RANK_\w+: .*\nfix: /m)
    expect(server.stderr).not.toMatch(/Unhandled|\\?n\s+at /)
  })

  it('wrong_flag: found at the first vote, before any request', async () => {
    await using server = serve({ kind: 'wrong_flag', rank: 2 })
    const { code, signal } = await Deadline.of(server.exit, 'the process')
    expect({ code, signal }).toEqual({ code: 1, signal: null })
    expect(server.stderr).toMatch(/SY_RANK_DISAGREES: .*\(step 1\): config_hash is .* on ranks 0, 1, 3; .* on rank 2/)
  })

  it('hang: a thread in native code cannot be ended, so the process kills itself', async () => {
    await using server = serve({ kind: 'hang', rank: 1, step: 4, operation: 9 })
    const url = (await Deadline.of(server.url(), 'the start'))!
    const { status, error } = await Deadline.of(complete(url, request(1, false)), 'the answer')
    expect(status).toBe(503)
    expect(error?.message).toMatch(/rank 1 has not moved .* operation 9/)
    const answered = performance.now()
    const { code, signal, at } = await Deadline.of(server.exit, 'the process')
    expect({ code, signal }).toEqual({ code: null, signal: 'SIGKILL' })
    expect(at - answered).toBeLessThan(EXIT_MS)
    expect(server.stderr).toMatch(/SY_RANK_STUCK: rank 1 cannot be stopped/)
  })

  it('while it drains: the drain ends, and the process with 1 instead of 0', async () => {
    await using server = serve({ kind: 'throw', rank: 1, step: 200, operation: 9 })
    const url = (await Deadline.of(server.url(), 'the start'))!
    let running = () => {}
    const runs = new Promise<void>(resolve => {
      running = resolve
    })
    const answer = complete(url, { ...request(2, true), max_tokens: 230 }, running)
    await Deadline.of(runs, 'a first token')
    server.signal('SIGTERM')
    expect((await Deadline.of(answer, 'the answer')).error?.message).toMatch(/rank 1 failed in step 200/)
    const { code, signal } = await Deadline.of(server.exit, 'the process')
    expect({ code, signal }).toEqual({ code: 1, signal: null })
    expect(server.stderr).toContain('finishing 1 request')
  })

  it('before it is ready: the process ends with 1 and says who', async () => {
    await using server = serve({ kind: 'exit', rank: 2, step: 0 })
    const { code, signal } = await Deadline.of(server.exit, 'the process')
    expect({ code, signal }).toEqual({ code: 1, signal: null })
    expect(server.stdout).toBe('')
    expect(server.stderr).toMatch(/SY_RANK_DIED: rank 2 is gone .*phase starting\nfix: /)
  })
})
