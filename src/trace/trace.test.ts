// Two ranks in one thread, a clock that only counts its readings, a program of two kernels and a collective: an exact trace.
// Then rings that overflow, recording that is switched, and the properties of files of random runs.
import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { lendExchange, ShmCommunicator } from '../comm/index.js'
import { HostMemoryLender } from '../device/memory.js'
import { type BoundOperation, type RowValues, runSequential } from '../program/index.js'
import { ControlBlock, PHASES } from '../runtime/control.js'
import { interleave } from '../runtime/interleave.js'
import type { Step } from '../runtime/wait.js'
import {
  arrivalsOf,
  type ChromeEvent,
  chromeEvents,
  chromeJson,
  LANE,
  lendTraceRing,
  openTraceRing,
  readTrace,
  recordsWritten,
  type StepEvent,
  summarize,
  switchRecording,
  type Trace,
  type TracedOperation,
  TraceRecorder,
  traceWaits,
} from './index.js'

const local = { layer: -1, group: [], bytes: () => null }

const rowsOf = (tokens: number): RowValues => ({
  rows: { tokens, padded: tokens, gathered: 2 * tokens, slice: tokens, received: 0, logitRows: 1, gatheredLogits: 2 },
  counts: { dp: [], attnTp: [], tp: [], logits: [] },
  member: { dp: 0, attnTp: 0, tp: 0, logits: 0 },
})

/** `ranks` ranks run `steps` steps of: kernel, barrier, kernel. Each clock reading takes a millisecond. */
function runRanks(
  ranks: number,
  steps: number,
  seed: number,
  records = 1000,
  recorded = (_step: number) => true,
): Trace {
  const lender = new HostMemoryLender()
  const control = ControlBlock.create(ranks)
  const all = Array.from({ length: ranks }, (_, r) => r)
  const group = { name: 'tp', index: 0, ranks: all, memory: lendExchange(lender, 'tp', ranks, 64) }
  let time = 0
  const clock = { now: () => time++ }
  const rings = all.map(() => openTraceRing(lendTraceRing(lender, records)))
  const recorders = rings.map(
    ring =>
      new TraceRecorder(
        { buffer: ring.head.buffer as SharedArrayBuffer, byteOffset: 0, byteLength: ring.head.buffer.byteLength },
        clock,
      ),
  )
  const tag = { operation: 1, layer: 0, label: 'meet' }
  const life = function* (rank: number): Step<void> {
    const trace = recorders[rank]!
    const status = control.statusWriter(rank, trace)
    const comm = new ShmCommunicator(control, group, rank)
    const place = { rows: 'tokens' as const, layer: 0 }
    const operations: BoundOperation[] = [
      { ...place, kind: 'add', index: 0, how: 'kernel', kernel: () => {} },
      { ...place, kind: 'all_gather', index: 1, how: 'collective', run: () => comm.barrier(tag) },
      { ...place, kind: 'add', index: 2, how: 'kernel', kernel: () => {} },
    ]
    for (let step = 1; step <= steps; step++) {
      switchRecording(rings[rank]!, recorded(step))
      status.step(step)
      status.phase('voting')
      yield* comm.barrier({ ...tag, operation: -1 })
      status.phase('forward')
      status.program(0)
      const values = rowsOf(step)
      trace.rows(values.rows)
      yield* runSequential(operations, values, status, trace)
    }
    status.step(steps + 1)
  }
  interleave(
    all.map(rank => traceWaits(life(rank), recorders[rank]!)),
    seed,
  )
  const operations: TracedOperation[] = [
    { ...local, kind: 'linear', label: 'first', sentBy: 0 },
    {
      kind: 'all_gather',
      layer: 0,
      label: 'meet',
      group: all,
      sentBy: 1,
      bytes: ({ tokens, gathered }) => ({ sent: 4 * tokens, received: 4 * (gathered - tokens) }),
    },
    { ...local, kind: 'linear', label: 'second', sentBy: 2 },
  ]
  return {
    phases: PHASES,
    ranks: all.map(rank => ({
      rank,
      name: `rank ${rank}`,
      programs: [{ name: 'test', operations }],
      events: readTrace(rings[rank]!),
    })),
  }
}

/** The events of a rank as lines, by their begin. */
function lines(steps: readonly StepEvent[]): string[] {
  const found: [number, number, string][] = steps.flatMap(step => [
    [step.start, step.end, `step ${step.step} of ${step.rows?.tokens} tokens`],
    ...step.phases.map(e => [e.start, e.end, ` ${PHASES[e.phase]}`] as [number, number, string]),
    ...step.operations.map(
      e => [e.start, e.end, `  operation ${e.operation}, ${e.rows} rows`] as [number, number, string],
    ),
    ...step.waits.map(e => [e.start, e.end, `   rank ${e.peer} in ${e.operation}`] as [number, number, string]),
  ])
  return found
    .sort((a, b) => a[0] - b[0])
    .map(([from, to, what]) => `${from}..${to}${what.startsWith(' ') ? '' : ' '}${what}`)
}

describe('two ranks and one step', () => {
  const trace = runRanks(2, 1, 1)
  const [first, second] = trace.ranks.map(r => lines(r.events.steps))

  // Rank 0 begins and waits in the vote; rank 1 finds it there, goes on and waits in the program until rank 0 comes.
  it('is exactly this trace', () => {
    expect(first).toEqual([
      '0..18 step 1 of 1 tokens',
      '1..11 voting',
      '2..10   rank 1 in -1',
      '11..18 forward',
      '12..13  operation 0, 1 rows',
      '14..15  operation 1, 1 rows',
      '16..17  operation 2, 1 rows',
    ])
    expect(second).toEqual([
      '3..24 step 1 of 1 tokens',
      '4..5 voting',
      '5..24 forward',
      '6..7  operation 0, 1 rows',
      '8..21  operation 1, 1 rows',
      '9..20   rank 0 in 1',
      '22..23  operation 2, 1 rows',
    ])
  })

  it('has exactly these arrivals', () => {
    const arrivals = [...arrivalsOf(trace)].map(a => `${a.label}: ${a.from} at ${a.sentAt} -> ${a.to} at ${a.seenAt}`)
    expect(arrivals).toEqual([
      'vote: 1 at 5 -> 0 at 10',
      'meet: 1 at 9 -> 0 at 14',
      'vote: 0 at 2 -> 1 at 4',
      'meet: 0 at 15 -> 1 at 20',
    ])
  })

  it('has exactly this summary', () => {
    const { kinds, waits, ...rest } = summarize(trace)
    expect(rest).toEqual({ ranks: 2, steps: 1, us: 24000, rows: 2, lost: 0, deviceIdleShare: null })
    expect(kinds.map(({ kind, calls, us }) => [kind, calls, us])).toEqual([
      ['waiting', 2, 19000],
      ['between', 0, 10000],
      ['linear', 4, 4000],
      ['all_gather', 2, 3000],
      ['voting', 2, 3000],
    ])
    expect(waits).toEqual([
      { rank: 1, source: 0, for: 'all_gather: meet', times: 1, us: 11000 },
      { rank: 0, source: 1, for: 'vote', times: 1, us: 8000 },
    ])
  })
})

describe('operations that a device timed', () => {
  it('belong to their step, also when they are told in a later one, and show the time between steps', () => {
    const span = lendTraceRing(new HostMemoryLender(), 100)
    const ring = openTraceRing(span)
    switchRecording(ring, true)
    let time = 0
    const recorder = new TraceRecorder(span, { now: () => time++ })
    const rows = rowsOf(3).rows
    for (let step = 1; step <= 3; step++) {
      recorder.step(step)
      recorder.phase(PHASES.indexOf('forward'))
      recorder.rows(rows)
      // Two operations of 10 ms each, told one step later; 5 ms lie between the steps.
      const at = 25 * (step - 1)
      if (step > 1) recorder.deviceOperation(step - 1, 0, 0, 3, at - 25, at - 15)
      if (step > 1) recorder.deviceOperation(step - 1, 0, 1, 3, at - 15, at - 5)
    }
    recorder.step(4)
    const events = readTrace(ring)
    expect(events.steps.map(s => [s.step, s.operations.map(op => [op.operation, op.start, op.end])])).toEqual([
      [
        1,
        [
          [0, 0, 10],
          [1, 10, 20],
        ],
      ],
      [
        2,
        [
          [0, 25, 35],
          [1, 35, 45],
        ],
      ],
      [3, []],
    ])
    const operations = ['embed', 'sample'].map(kind => ({ ...local, kind, label: kind, sentBy: 0 }))
    const rank = { rank: 0, name: 'rank 0', programs: [{ name: '', operations }], events, onDevice: true }
    const { deviceIdleShare, kinds } = summarize({ ranks: [rank], phases: PHASES })
    expect(deviceIdleShare).toBeCloseTo(5 / 45, 10)
    expect(kinds.find(k => k.kind === 'sample')).toMatchObject({ calls: 2, us: 20000 })
    expect(kinds.find(k => k.kind === 'queueing')?.calls).toBe(3)
  })
})

interface Slice {
  readonly name: string
  readonly from: number
  readonly to: number
}

/** Slices of each lane, checked to nest: any two of a lane are apart, or one lies in the other. */
function lanesOf(events: readonly ChromeEvent[]): Map<string, Slice[]> {
  const lanes = new Map<string, Slice[]>()
  for (const e of events) {
    if (e.ph !== 'X') continue
    const key = `${e.pid} ${e.tid}`
    lanes.set(key, [...(lanes.get(key) ?? []), { name: e.name, from: e.ts, to: e.ts + e.dur }])
  }
  const inside = (a: Slice, b: Slice) => a.from >= b.from && a.to <= b.to
  const nests = (a: Slice, b: Slice) => a.to <= b.from || b.to <= a.from || inside(a, b) || inside(b, a)
  for (const slices of lanes.values()) {
    expect(slices.filter(a => a.from < 0 || a.to < a.from || !slices.every(b => nests(a, b)))).toEqual([])
  }
  return lanes
}

describe('the file of any run', () => {
  const runs = fc.record({
    ranks: fc.integer({ min: 1, max: 4 }),
    steps: fc.integer({ min: 1, max: 4 }),
    seed: fc.nat(),
  })

  it('nests, and every flow begins and ends inside slices, the end not before the begin', () => {
    fc.assert(
      fc.property(runs, ({ ranks, steps, seed }) => {
        const trace = runRanks(ranks, steps, seed)
        const events = [...chromeEvents(trace)]
        const lanes = lanesOf(events)
        const begins = new Map<number, ChromeEvent & { ts: number }>()
        let ends = 0
        for (const e of events) {
          if (e.ph !== 's' && e.ph !== 'f') continue
          const around = lanes.get(`${e.pid} ${e.tid}`)!.filter(s => s.from <= e.ts && e.ts <= s.to)
          expect(around.length).toBeGreaterThan(0)
          if (e.ph === 's') {
            expect(begins.has(e.id)).toBe(false)
            begins.set(e.id, e)
            continue
          }
          ends++
          const begin = begins.get(e.id)!
          expect(begin.ts).toBeLessThanOrEqual(e.ts)
          expect(begin.pid).not.toBe(e.pid)
        }
        // Two places a step where each rank hears from each other one.
        expect(ends).toBe(2 * steps * ranks * (ranks - 1))
        expect(begins.size).toBe(ends)
        for (const w of events) {
          if (w.ph !== 'X' || w.cat !== 'wait') continue
          const lane = w.args['for'] === 'vote' ? LANE.steps : LANE.operations
          const around = lanes.get(`${w.pid} ${lane}`)!.filter(s => s.from <= w.ts && w.ts + w.dur <= s.to)
          expect(around.length).toBeGreaterThan(0)
        }
      }),
      { numRuns: 40, seed: 4 },
    )
  })

  it('is JSON that says the same, with bytes, rows and waits in the arguments', () => {
    const trace = runRanks(3, 2, 7)
    const file = JSON.parse([...chromeJson(trace, { model: 'test' })].join(''))
    expect(Object.keys(file)).toEqual(['displayTimeUnit', 'otherData', 'traceEvents'])
    expect(file.otherData).toEqual({ model: 'test' })
    expect(file.traceEvents).toEqual(JSON.parse(JSON.stringify([...chromeEvents(trace)])))
    const gathers = file.traceEvents.filter((e: { name: string }) => e.name === 'all_gather')
    expect(gathers).toHaveLength(6)
    for (const { args } of gathers) {
      expect(args).toMatchObject({ label: 'meet', layer: 0, rows: args.step, bytes_sent: 4 * args.step })
    }
    const waited = gathers.flatMap((e: { args: { waited_us?: object } }) => Object.values(e.args.waited_us ?? {}))
    const summed = summarize(trace).waits.filter(w => w.for === 'all_gather: meet')
    expect(summed.reduce((n, w) => n + w.us, 0)).toBeCloseTo(
      waited.reduce((a: number, b: number) => a + b, 0),
      6,
    )
    expect(waited.length).toBeGreaterThan(0)
  })

  it('accounts for all time of the steps', () => {
    fc.assert(
      fc.property(runs, ({ ranks, steps, seed }) => {
        const trace = runRanks(ranks, steps, seed)
        const { kinds, steps: counted } = summarize(trace)
        expect(counted).toBe(steps)
        expect(kinds.reduce((sum, k) => sum + k.share, 0)).toBeCloseTo(1, 9)
        for (const { us } of kinds) expect(us).toBeGreaterThanOrEqual(0)
      }),
      { numRuns: 30, seed: 5 },
    )
  })
})

describe('recording', () => {
  it('keeps the newest whole steps when the ring is too small, and counts what is lost', () => {
    const whole = runRanks(2, 8, 3).ranks[0]!.events
    expect(whole.lost).toBe(0)
    const small = runRanks(2, 8, 3, 20).ranks[0]!.events
    expect(small.lost).toBeGreaterThan(0)
    expect(small.steps.length).toBeGreaterThan(0)
    expect(small.steps.length).toBeLessThan(8)
    expect(small.steps).toEqual(whole.steps.slice(-small.steps.length))
  })

  it('records whole steps only, those that began while it was on', () => {
    const trace = runRanks(2, 6, 2, 1000, step => step >= 3 && step <= 4)
    for (const { events } of trace.ranks) {
      expect(events.steps.map(s => s.step)).toEqual([3, 4])
      for (const step of events.steps) expect(step.operations.map(o => o.operation)).toEqual([0, 1, 2])
    }
  })

  it('reads neither clock nor memory while it is off', () => {
    const ring = openTraceRing(lendTraceRing(new HostMemoryLender(), 10))
    const span = {
      buffer: ring.head.buffer as SharedArrayBuffer,
      byteOffset: 0,
      byteLength: ring.head.buffer.byteLength,
    }
    const recorder = new TraceRecorder(span, {
      now: () => {
        throw new Error('the clock was read')
      },
    })
    recorder.step(1)
    recorder.phase(3)
    recorder.begin(0)
    recorder.waitBegins(1)
    recorder.waitEnds()
    recorder.end(5)
    recorder.rows(rowsOf(1).rows)
    recorder.step(2)
    expect(recordsWritten(ring)).toBe(0)
  })
})
