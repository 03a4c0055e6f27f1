// The ExpertBuffer's conformance suite: every implementation runs it, ranks interleaved in one thread in seeded orders. What is
// received and combined is compared bit for bit with a brute-force all-to-all (suite/ep-case.suite.ts). Misuse is in
// suite/ep-misuse.suite.ts.
import { describe, expect, it } from 'vitest'
import { hostBuffer } from '../device/memory.js'
import { interleave } from '../runtime/interleave.js'
import { CounterRandom, STREAM } from '../runtime/random.js'
import type { Step } from '../runtime/wait.js'
import type { ExpertBuffer, NormalHandle } from './expert-buffer.js'
import {
  checkLowLatency,
  checkNormal,
  finishLowLatency,
  finishNormal,
  lowLatencyCall,
  normalCall,
  tag,
} from './suite/ep-calls.suite.js'
import {
  type CaseLimits,
  DTYPES,
  type EpCase,
  emptyRows,
  randomCase,
  readRows,
  routingOf,
  same,
} from './suite/ep-case.suite.js'
import { disagreements, type MakeExpertBuffers, misuse, payload, plainCase, run } from './suite/ep-misuse.suite.js'

import type { WireDtype } from './wire/format.js'

export type { MakeExpertBuffers } from './suite/ep-misuse.suite.js'

/** What a random case does, in order: the same on all ranks. */
function* script(c: EpCase, b: ExpertBuffer): Step<void> {
  const random = new CounterRandom(c.seed, STREAM.wakeOrder)
  let cached: NormalHandle | null = null
  for (let call = 0; call < 4; call++) {
    b.beginStep(call)
    const kind = random.below(4)
    if (kind === 0 && cached) yield* normalCall(c, b, call, { cached })
    else if (kind <= 1) {
      const worstCase = random.below(2) === 0 ? c.size * c.config.normal.maxTokens : undefined
      cached = yield* normalCall(c, b, call, worstCase === undefined ? {} : { worstCase })
    } else yield* lowLatencyCall(c, b, call)
  }
}

export function expertBufferSuite(
  name: string,
  make: MakeExpertBuffers,
  options: { shapes: number; limits?: CaseLimits },
): void {
  const { limits = {} } = options
  const allowed = (dtypes: readonly WireDtype[]) => dtypes.filter(d => (limits.wires ?? DTYPES).includes(d))
  const ways = <T>(rings: T) => (limits.rings === false ? (['direct'] as const) : (['direct', rings] as const))
  describe(`ExpertBuffer: ${name}`, () => {
    const parts = 4
    it.each(Array.from({ length: parts }, (_, i) => i))(
      `equals a brute-force all-to-all over ${options.shapes} random shapes (part %i of ${parts})`,
      part => {
        for (let i = 0; i < options.shapes / parts; i++) {
          const c = randomCase(1000 + part * 100_000 + i, limits)
          run(make(c.config), b => script(c, b), c.seed)
        }
      },
      120_000,
    )

    it('hands the same rows to the experts in every call, and constant rows stay constant', () => {
      const c = plainCase(limits)
      const flat = { ...c, tokens: c.tokens }
      const results = run(make(c.config), function* (b): Step<number[][]> {
        const x = emptyRows(c.tokens[b.member]!, c.config.hidden)
        for (let t = 0; t < c.tokens[b.member]!; t++) writeConstant(x, t, c.config.hidden, b.member + 1)
        const { result } = yield* b.dispatch(tag(1), routingOf(flat, b.member), { kind: 'f32', rows: x })
        if (result.x.kind !== 'f32') throw new Error('rows are not f32')
        const rows = readRows(result.x.rows, upTo(result.handle.received), c.config.hidden)
        const { sourceStart } = result.handle
        const sources = rows.map(row => row[0]! - 1)
        const blocks = sources.every((s, r) => r >= sourceStart[s]! && r < sourceStart[s + 1]!)
        expect(blocks).toBe(true)
        expect(rows.every(row => row.every(v => v === row[0]))).toBe(true)
        yield* b.release(tag(2), result.handle)
        return rows
      })
      expect(results.some(rows => rows.length > 0)).toBe(true)
    })

    it('gives the same bits in normal and low-latency mode, whatever the transit, on equal wires', () => {
      for (let seed = 0; seed < 30; seed++) {
        const dtypes = allowed(DTYPES)
        const back = limits.combineWires
        const one = back ? { combineWires: [back[seed % back.length]!] } : {}
        const base = randomCase(seed + 5_000, { ...limits, wires: [dtypes[seed % dtypes.length]!], ...one })
        const rows = ways({ channels: 2, chunkTokens: 2, ringTokens: 5 }).map(transit => {
          const normal = { ...base.config.normal, transit }
          const lowLatency = { ...base.config.lowLatency, reduce: 'sender' as const }
          const c: EpCase = { ...base, config: { ...base.config, normal, lowLatency } }
          return run(
            make(c.config),
            function* (b): Step<number[][][]> {
              const { result } = yield* b.dispatch(tag(1), routingOf(c, b.member), payload(c, b, 1))
              const a = yield* finishNormal(c, b, result, 1, true)
              const l = yield* lowLatencyCall(c, b, 1)
              return [a, l]
            },
            seed,
          )
        })
        const [direct, ring] = rows
        same(
          direct!.map(r => r[1]),
          direct!.map(r => r[0]),
          'low-latency rows',
          base,
        )
        if (ring) same(ring, direct, 'rows through rings', base)
      }
    })

    it('keeps two results of each mode alive at once, combined in any order', () => {
      for (let seed = 0; seed < 40; seed++) {
        const drawn = randomCase(seed + 9_000, limits)
        const c: EpCase = { ...drawn, config: { ...drawn.config, results: 2 } }
        run(
          make(c.config),
          function* (b): Step<void> {
            const sendNormal = function* (call: number) {
              const handle = yield* b.notify(tag(call * 10), routingOf(c, b.member))
              return yield* b.send(tag(call * 10), handle, payload(c, b, call))
            }
            const [n1, n2] = [yield* sendNormal(1), yield* sendNormal(2)]
            const l3 = yield* b.sendLowLatency(tag(30), routingOf(c, b.member), payload(c, b, 3))
            const l4 = yield* b.sendLowLatency(tag(40), routingOf(c, b.member), payload(c, b, 4))
            const r4 = (yield* l4()).result
            const r2 = (yield* n2()).result
            const r3 = (yield* l3()).result
            const r1 = (yield* n1()).result
            expect([r1.handle.parity, r2.handle.parity].sort()).toEqual([0, 1])
            expect([r3.handle.parity, r4.handle.parity].sort()).toEqual([0, 1])
            checkNormal(c, b, r1, 1)
            checkLowLatency(c, b, r3, 3)
            yield* finishLowLatency(c, b, r4, 4)
            yield* finishNormal(c, b, r1, 1, false)
            const again = (yield* (yield* sendNormal(5))()).result
            yield* finishNormal(c, b, again, 5, true)
            yield* finishNormal(c, b, r2, 2, true)
            yield* finishLowLatency(c, b, r3, 3)
          },
          seed,
        )
      }
    })

    it('lets a result wait while many others come and go', () => {
      const c = plainCase(limits)
      run(make(c.config), function* (b): Step<void> {
        const old = yield* b.sendLowLatency(tag(0), routingOf(c, b.member), payload(c, b, 0))
        for (let call = 1; call < 30; call++) yield* lowLatencyCall(c, b, call)
        const { result } = yield* old()
        checkLowLatency(c, b, result, 0)
        yield* finishLowLatency(c, b, result, 0)
      })
    })

    it('sends dead members nothing, waits for none of them, and goes on after them', () => {
      for (let seed = 0; seed < 30; seed++) {
        const drawn = randomCase(seed + 20_000, limits)
        const dead = seed % drawn.size
        const silent = drawn.tokens.map((n, m) => (m === dead ? 0 : n))
        const c: EpCase = { ...drawn, tokens: silent }
        const all = make(c.config)
        const living = all.filter(b => b.member !== dead)
        // What the dead one was in the middle of is dropped.
        interleave(
          living.map(function* (b): Step<void> {
            yield* b.sendLowLatency(tag(1), routingOf(c, b.member), payload(c, b, 1))
          }),
          seed,
        )
        run(
          living,
          function* (b): Step<void> {
            b.setActive(
              c.tokens.map((_, m) => m !== dead),
              1,
            )
            for (let call = 2; call < 5; call++) {
              const { handle } = { handle: yield* normalCall(c, b, call, { dead }) }
              expect(handle.sourceStart[dead]).toBe(handle.sourceStart[dead + 1])
              yield* lowLatencyCall(c, b, call, dead)
            }
          },
          seed,
        )
      }
    })

    it('takes rows that are quantised already and hands them out as they travelled', () => {
      for (const dtype of allowed(['bf16', 'fp8', 'int8']))
        for (const transit of ways({ channels: 1, chunkTokens: 1, ringTokens: 2 })) {
          const c = plainCase(limits, ({ config }) => ({
            deliver: 'wire',
            normal: { ...config.normal, dispatchWire: dtype, transit },
            lowLatency: { ...config.lowLatency, dispatchWire: dtype, reduce: 'sender' },
          }))
          run(make(c.config), function* (b): Step<void> {
            const first = (yield* b.dispatch(tag(0), routingOf(c, b.member), payload(c, b, 1))).result
            expect(first.x.kind).toBe('wire')
            yield* finishNormal(c, b, first, 1, true)
            yield* lowLatencyCall(c, b, 1)
          })
        }
    })

    it('counts what it received, how full it got, and in which layout', () => {
      const c = plainCase(limits)
      const buffers = make(c.config)
      const received = run(buffers, function* (b): Step<number[]> {
        const handle = yield* normalCall(c, b, 1)
        yield* lowLatencyCall(c, b, 2)
        const { layout } = handle
        expect([...layout.tokensPerMember].reduce((a, n) => a + n, 0)).toBe(layout.tokenInMember.filter(Boolean).length)
        expect([...layout.tokensPerExpert].reduce((a, n) => a + n, 0)).toBe(
          c.ids[b.member]!.flat().filter(e => e >= 0).length,
        )
        expect(layout.tokensPerNode[0]).toBe(c.ids[b.member]!.filter(row => row.some(e => e >= 0)).length)
        expect(b.statistics.peakReceived).toBe(handle.received)
        expect(b.statistics.peakSlots).toBe(c.tokens[b.member])
        return [...b.statistics.receivedPerExpert]
      })
      const pairs = c.ids.flat(2).filter(e => e >= 0)
      expect(received.flat()).toEqual(
        Array.from({ length: received.flat().length }, (_, e) => 2 * pairs.filter(p => p === e).length),
      )
    })

    misuse(make, limits)
    disagreements(make, limits)
  })
}

const upTo = (n: number): number[] => Array.from({ length: n }, (_, i) => i)

function writeConstant(o: ReturnType<typeof emptyRows>, row: number, width: number, value: number): void {
  new Float32Array(hostBuffer(o.span), o.span.byteOffset + 4 * (o.offset + row * o.stride), width).fill(value)
}
