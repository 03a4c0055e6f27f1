// Transit rings where one member stops in the middle: whoever it keeps waiting names it, directly or through others. That all
// orders end, and with the right rows, is the conformance suite's (shm-expert-buffer.test.ts).
import { describe, expect, it } from 'vitest'
import { f32View, HostMemoryLender, i32View } from '../../../device/memory.js'
import type { Step, Wait } from '../../../runtime/wait.js'
import type { Routing } from '../../expert-buffer.js'
import { referenceWireKernels } from '../../wire/reference.js'
import { lendExpertBuffer } from './memory.js'
import { ShmExpertBuffer } from './shm-expert-buffer.js'

const MEMBERS = 3
const HIDDEN = 4
const tag = (label: string) => ({ operation: 1, layer: 0, label })

/** One expert a member; `routes[rank][token]` lists the members that the token goes to. */
function setUp(routes: readonly (readonly (readonly number[])[])[], ring = { chunkTokens: 1, ringTokens: 2 }) {
  const lender = new HostMemoryLender()
  const maxTokens = Math.max(...routes.map(r => r.length))
  const transit = { channels: 1, ...ring }
  const memory = lendExpertBuffer(lender, {
    hidden: HIDDEN,
    topK: MEMBERS,
    expertsOfMember: Array<number>(MEMBERS).fill(1),
    normal: { maxTokens, dispatchWire: 'f32', combineWire: 'f32', transit },
  })
  return routes.map((tokens, rank) => {
    const floats = (rows: number) => ({ span: lender.lend(4 * rows * HIDDEN, 'rows'), offset: 0, stride: HIDDEN })
    const of = (what: string) => ({ span: lender.lend(4 * tokens.length * MEMBERS, what), offset: 0, stride: MEMBERS })
    const routing: Routing = { tokens: tokens.length, ids: of('ids'), weights: of('weights') }
    i32View(routing.ids.span).set(
      tokens.flatMap(to => Array.from({ length: MEMBERS }, (_, m) => (to.includes(m) ? m : -1))),
    )
    const x = floats(tokens.length)
    f32View(x.span).fill(rank + 1)
    const out = floats(tokens.length)
    return { buffer: new ShmExpertBuffer(memory, rank, { kernels: referenceWireKernels }), routing, x, out }
  })
}

type Rank = ReturnType<typeof setUp>[number]

function* dispatch({ buffer, routing, x }: Rank, receives: boolean) {
  const handle = yield* buffer.notify(tag('notify'), routing)
  const receive = yield* buffer.send(tag('dispatch'), handle, { kind: 'f32', rows: x })
  return receives ? (yield* receive()).result : null
}

function* combine(rank: Rank, receives: boolean): Step<unknown> {
  const result = yield* dispatch(rank, true)
  f32View(result!.partials.span).set(f32View((result!.x as { rows: Rank['x'] }).rows.span))
  const receive = yield* rank.buffer.sendCombine(tag('combine'), result!.handle, rank.out)
  return receives ? yield* receive() : null
}

/** Runs the steps in turns until none can go on. @returns the rank that each is waiting for, -1 at its end */
function runToStandstill(steps: readonly Step<unknown>[]): number[] {
  const waits: (Wait | null)[] = steps.map(() => null)
  const ended = steps.map(() => false)
  for (let moved = true; moved; ) {
    moved = false
    steps.forEach((step, rank) => {
      if (ended[rank] || (waits[rank] && !waits[rank].ready())) return
      moved = true
      const next = step.next()
      ended[rank] = next.done === true
      waits[rank] = next.done ? null : next.value
    })
  }
  return waits.map(wait => wait?.peer ?? -1)
}

/** Whom a rank waits for in the end, when everybody waits for whom `peers` says. */
const inTheEnd = (peers: readonly number[], rank: number): number => {
  let at = rank
  for (let i = 0; i < peers.length && peers[at]! >= 0; i++) at = peers[at]!
  return at
}

const everywhere = (tokens: number) => Array.from({ length: tokens }, () => [0, 1, 2])

describe('transit rings with a member that stops', () => {
  const cases = [
    ['does not take and does not send on', [everywhere(9), everywhere(9), everywhere(9)]],
    ['only lacks what it should take', [everywhere(9), everywhere(9), []]],
    ['only lacks what it should send', [[[2], [2]], [[2]], everywhere(9)]],
  ] as const
  for (const [name, stops] of [
    ['dispatch', dispatch],
    ['combine', combine],
  ] as const)
    it.each(cases)(`${name}: the others name the one that %s`, (_, routes) => {
      const ranks = setUp(routes)
      const peers = runToStandstill(ranks.map((rank, r) => stops(rank, r !== 2)))
      expect(peers[2]).toBe(-1)
      const waiting = [0, 1].filter(r => peers[r] !== -1)
      expect(waiting.length).toBeGreaterThan(0)
      expect(waiting.map(r => inTheEnd(peers, r))).toEqual(waiting.map(() => 2))
    })

  it('end with rings of one row, and count the lanes that were full', () => {
    const ranks = setUp([everywhere(9), everywhere(5), everywhere(1)], { chunkTokens: 1, ringTokens: 1 })
    expect(runToStandstill(ranks.map(rank => combine(rank, true)))).toEqual([-1, -1, -1])
    ranks.forEach(({ out, routing }, r) => {
      const values = f32View(out.span).subarray(0, routing.tokens * HIDDEN)
      expect([...values]).toEqual(Array<number>(values.length).fill(MEMBERS * (r + 1)))
    })
    expect(ranks[0]!.buffer.statistics.ringStalls).toBeGreaterThan(0)
  })
})
