// The ExpertBuffer suite's cases of misuse and of ranks that disagree: errors with codes, on all ranks alike, and never corruption.
import { expect, it } from 'vitest'
import { interleave } from '../../runtime/interleave.js'
import type { Step } from '../../runtime/wait.js'
import type { ExpertBuffer } from '../expert-buffer.js'
import type { ExpertBufferConfig } from '../expert-buffer-config.js'
import { wireFormat } from '../wire/format.js'
import { expertRows, lowLatencyCall, normalCall, tag } from './ep-calls.suite.js'
import { type CaseLimits, type EpCase, emptyRows, randomCase, routingOf, tokenRows } from './ep-case.suite.js'

/** Buffers of all members of one group, over fresh memory. */
export type MakeExpertBuffers = (config: ExpertBufferConfig) => ExpertBuffer[]

export const run = <T>(buffers: readonly ExpertBuffer[], body: (b: ExpertBuffer) => Step<T>, seed = 1): T[] =>
  interleave(buffers.map(body), seed)

/** A small fixed case: 3 members of 2 experts, some tokens everywhere. */
export function plainCase(
  limits: CaseLimits = {},
  change: (c: EpCase) => Partial<ExpertBufferConfig> = () => ({}),
  members = 3,
): EpCase {
  for (let seed = 0; ; seed++) {
    const c = randomCase(seed, { ...limits, members, wires: ['f32'], combineWires: ['f32'] })
    if (c.tokens.every(t => t >= 2) && c.config.expertsOfMember.every(e => e >= 2) && c.config.results === 2)
      return { ...c, config: { ...c.config, ...change(c) } as EpCase['config'] }
  }
}

export const payload = (c: EpCase, b: ExpertBuffer, call: number) =>
  ({ kind: 'f32', rows: tokenRows(c, b.member, call) }) as const

/** Misuse is an error with a code, and the buffers still work when the same misuse happened on all ranks. */
export function misuse(make: MakeExpertBuffers, limits: CaseLimits = {}): void {
  const refused = (code: string, c: EpCase, body: (b: ExpertBuffer) => Step<unknown>) => {
    const buffers = make(c.config)
    const codes = run(buffers, function* (b): Step<unknown> {
      try {
        yield* body(b)
        return 'nothing was thrown'
      } catch (error) {
        return (error as { code?: string }).code ?? error
      }
    })
    expect(codes).toEqual(buffers.map(() => code))
    return buffers
  }

  it('refuses a third result alive, and works on', () => {
    const c = plainCase(limits)
    for (const mode of ['normal', 'low-latency'] as const) {
      const buffers = refused('SY_EP_TOO_MANY_RESULTS', c, function* (b) {
        for (let i = 0; i < 3; i++) {
          if (mode === 'normal') yield* b.dispatch(tag(i), routingOf(c, b.member), payload(c, b, i))
          else yield* (yield* b.sendLowLatency(tag(i), routingOf(c, b.member), payload(c, b, i)))()
        }
      })
      run(buffers, function* (b): Step<void> {
        if (mode === 'normal') yield* lowLatencyCall(c, b, 5)
        else yield* normalCall(c, b, 5)
      })
    }
  })

  it('refuses more tokens than slots or than the buffer was built for, and works on', () => {
    const c = plainCase(limits)
    const { hidden } = c.config
    const many = (b: ExpertBuffer) => ({ ...routingOf(c, b.member), tokens: c.config.lowLatency.slots + 1 })
    const x = { kind: 'f32', rows: emptyRows(64, hidden) } as const
    run(
      refused('SY_EP_TOO_MANY_TOKENS', c, b => b.sendLowLatency(tag(1), many(b), x)),
      b => lowLatencyCall(c, b, 2),
    )
    const more = (b: ExpertBuffer) => ({ ...routingOf(c, b.member), tokens: c.config.normal.maxTokens + 1 })
    run(
      refused('SY_EP_TOO_MANY_TOKENS', c, b => b.notify(tag(1), more(b))),
      b => normalCall(c, b, 2),
    )
  })

  it('refuses on all ranks what would overflow one, and works on', () => {
    const c = plainCase(limits, ({ config }) => ({ normal: { ...config.normal, maxReceived: 1 } }))
    run(
      refused('SY_EP_RECEIVES_TOO_MUCH', c, b => b.notify(tag(1), routingOf(c, b.member))),
      b => lowLatencyCall(c, b, 2),
    )
    const wide = plainCase(limits)
    run(
      refused('SY_EP_RECEIVES_TOO_MUCH', wide, b => b.notify(tag(1), routingOf(wide, b.member), { worstCase: 1 })),
      b => normalCall(wide, b, 2),
    )
  })

  it('refuses halves out of order, twice, or with a handle of another buffer', () => {
    const c = plainCase(limits)
    const elsewhere = make(c.config)
    const foreign = run(elsewhere, b => b.notify(tag(1), routingOf(c, b.member)))
    const out = (b: ExpertBuffer) => emptyRows(c.tokens[b.member]!, c.config.hidden)
    const orders: ((b: ExpertBuffer) => Step<unknown>)[] = [
      function* (b) {
        const handle = yield* b.notify(tag(1), routingOf(c, b.member))
        yield* b.sendCombine(tag(1), handle, out(b))
      },
      function* (b) {
        const handle = yield* b.notify(tag(1), routingOf(c, b.member))
        const receive = yield* b.send(tag(1), handle, payload(c, b, 1))
        yield* receive()
        yield* receive()
      },
      function* (b) {
        const handle = yield* normalCall(c, b, 1)
        yield* b.release(tag(1), handle)
      },
      b => b.send(tag(1), foreign[b.member]!, payload(c, b, 1)),
      function* (b) {
        const receive = yield* b.sendLowLatency(tag(1), routingOf(c, b.member), payload(c, b, 1))
        const { result } = yield* receive()
        const rows = expertRows(c, b, result, 1, 'experts')
        yield* b.sendCombineLowLatency(tag(1), result.handle, rows, out(b))
        yield* b.sendCombineLowLatency(tag(1), result.handle, rows, out(b))
      },
    ]
    for (const order of orders) refused('SY_EP_WRONG_ORDER', c, order)
  })

  it('refuses an operation while another one runs', () => {
    const c = plainCase(limits)
    const [b] = make(c.config)
    const waiting = b!.notify(tag(1), routingOf(c, 0))
    expect(waiting.next().done).toBe(false)
    const codes = [
      () => b!.notify(tag(2), routingOf(c, 0)).next(),
      () => b!.sendLowLatency(tag(2), routingOf(c, 0), payload(c, b!, 1)).next(),
    ].map(begin => {
      try {
        return begin()
      } catch (error) {
        return (error as { code?: string }).code
      }
    })
    expect(codes).toEqual(['SY_EP_OVERLAP', 'SY_EP_OVERLAP'])
  })

  it('refuses rows of another shape, modes it was not built for and experts there are not', () => {
    const c = plainCase(limits, ({ config }) => ({ lowLatency: { ...config.lowLatency, reduce: 'origin' } }))
    const format = wireFormat('fp8', c.config.hidden)
    const other = { kind: 'wire', rows: { format, span: emptyRows(64, 128).span } } as const
    refused('SY_EP_SHAPE_CHANGED', c, b => b.sendLowLatency(tag(1), routingOf(c, b.member), other))
    const short = { kind: 'f32', rows: emptyRows(1, c.config.hidden) } as const
    refused('SY_EP_SHAPE_CHANGED', c, b =>
      b.sendLowLatency(tag(1), routingOf(c, b.member), { ...short, rows: { ...short.rows, stride: 1 << 20 } }),
    )
    refused('SY_EP_SHAPE_CHANGED', c, function* (b) {
      const receive = yield* b.sendLowLatency(tag(1), routingOf(c, b.member), payload(c, b, 1))
      const { result } = yield* receive()
      const rows = { kind: 'partials', rows: emptyRows(64, c.config.hidden) } as const
      yield* b.sendCombineLowLatency(tag(2), result.handle, rows, emptyRows(9, c.config.hidden))
    })
    refused('SY_EP_BAD_EXPERT', { ...c, ids: c.ids.map(r => r.map(row => row.map(() => 9999))) }, b =>
      b.notify(tag(1), routingOf({ ...c, ids: c.ids.map(r => r.map(row => row.map(() => 9999))) }, b.member)),
    )
    const { lowLatency: _, ...normalOnly } = c.config
    const buffers = make(normalOnly)
    expect(() => buffers[0]!.sendLowLatency(tag(1), routingOf(c, 0), payload(c, buffers[0]!, 1)).next()).toThrow(
      /without low-latency mode/,
    )
  })
}

/** Ranks that do not do the same are told so, by field, instead of waiting for ever or reading wrong rows. */
export function disagreements(make: MakeExpertBuffers, limits: CaseLimits = {}): void {
  const c = plainCase(limits)
  const tokens = c.config.expertsOfMember.map((_, m) => routingOf(c, m).tokens)
  /** Everybody expects what the others bring; the odd one brings a token less. */
  const expecting = (b: ExpertBuffer, odd: boolean) => {
    const routing = routingOf(c, b.member)
    return { ...routing, tokens: routing.tokens - (odd ? 1 : 0), tokensOfMember: tokens }
  }
  const cases: [string, RegExp, (b: ExpertBuffer, odd: boolean) => Step<unknown>][] = [
    ['layer', /layer is/, (b, odd) => b.notify({ ...tag(1), layer: odd ? 4 : 3 }, routingOf(c, b.member))],
    ['operation', /program operation is/, (b, odd) => b.notify(tag(odd ? 2 : 1), routingOf(c, b.member))],
    [
      'kind of operation',
      /operation is notify as rank \d has it, sendLowLatency on rank|operation is sendLowLatency as rank \d has it, notify/,
      function* (b, odd) {
        if (!odd) return yield* b.notify(tag(1), routingOf(c, b.member))
        const receive = yield* b.sendLowLatency(tag(1), routingOf(c, b.member), payload(c, b, 1))
        return yield* receive()
      },
    ],
    ['worst case', /worst case/, (b, odd) => b.notify(tag(1), routingOf(c, b.member), { worstCase: odd ? 64 : 65 })],
    [
      'step',
      /step is/,
      (b, odd) => {
        b.beginStep(odd ? 8 : 7)
        return b.notify(tag(1), routingOf(c, b.member))
      },
    ],
    [
      'active members',
      /active members/,
      (b, odd) => {
        b.setActive([true, true, !odd || b.member === 2], 1)
        return b.notify(tag(1), routingOf(c, b.member))
      },
    ],
    ['number of tokens, normal', /: rows is \d+ as rank/, (b, odd) => b.notify(tag(1), expecting(b, odd))],
    [
      'number of tokens, low-latency',
      /: rows is \d+ as rank/,
      function* (b, odd) {
        const receive = yield* b.sendLowLatency(tag(1), expecting(b, odd), payload(c, b, 1))
        return yield* receive()
      },
    ],
  ]
  it('does not mind tokens that are as many as expected', () => {
    run(make(c.config), b => b.notify(tag(1), expecting(b, false)))
  })
  it.each(cases)('names the field when a rank has another %s', (_, pattern, body) => {
    let error: unknown
    try {
      run(make(c.config), b => body(b, b.member === 1))
    } catch (e) {
      error = e
    }
    expect((error as { code?: string }).code).toBe('SY_RANK_DISAGREES')
    expect((error as Error).message).toMatch(pattern)
  })
}
