// Failure drills: a rank that throws, stalls, exits or disagrees, at points drawn from a seed, in engines of real worker
// threads. Everyone who waits gets an error that names rank and place; nobody waits for ever.
import { fileURLToPath } from 'node:url'
import { describe, expect, it } from 'vitest'
import { SwitchyardError } from '../../src/config/errors.js'
import { engineFlags } from '../../src/config/flags.js'
import { Engine, GREEDY } from '../../src/engine/index.js'
import { planModel } from '../../src/engine/load-model.js'
import { openDevice } from '../../src/engine/open-device.js'
import { CounterRandom, STREAM } from '../../src/runtime/random.js'
import { until } from '../serve-echo.js'
import { Deadline } from './deadline.js'
import { type DrillPoint, drawPoints, drillFlags, expectNamed, type Told } from './drill-points.js'
import type { GivenFlags } from './harness.js'

const POINTS = process.env['SWITCHYARD_TEST_FULL'] === '1' ? 200 : 20
/** Each takes a load of the demo model. */
const KILLS = POINTS / 5
const TP4 = { tpSize: 4, attnDpSize: 2, epSize: 4 } as const satisfies GivenFlags

const prompt = (length: number, salt: number): number[] =>
  Array.from({ length }, (_, i) => 3 + ((i * 7 + salt * 13) % 150))

/** How one request ended: 'done', 'abort', or the error. */
async function outcome(engine: Engine, promptLength: number, maxTokens: number, salt: number): Promise<string | Told> {
  try {
    const sampling = { ...GREEDY, maxTokens, ignoreEos: true }
    let last = 'no end'
    for await (const event of engine.generate({ inputIds: prompt(promptLength, salt), sampling })) {
      if (event.finish) last = event.finish.reason === 'abort' ? 'abort' : 'done'
    }
    return last
  } catch (error) {
    if (error instanceof SwitchyardError) return error
    throw error
  }
}

/** Until a rank has begun step 4 and moves no more. */
async function untilStill(engine: Engine, rank: number): Promise<void> {
  const { control } = engine.host
  let [beat, since] = [-1, 0]
  await until(() => {
    const status = control.status(rank)
    if (status.step < 4 || status.beat !== beat) [beat, since] = [status.beat, performance.now()]
    return performance.now() - since > 200
  }, 'it stalls')
}

/** The token ids of a short greedy text. */
async function text(engine: Engine): Promise<string> {
  const ids: number[] = []
  const sampling = { ...GREEDY, maxTokens: 8, ignoreEos: true }
  for await (const event of engine.generate({ inputIds: prompt(20, 1), sampling })) ids.push(...event.tokenIds)
  return ids.join(' ')
}

/** Requests of mixed lengths, all of them longer than any drill's step. */
const crowd = (engine: Engine, count: number): Promise<(string | Told)[]> =>
  Promise.all(Array.from({ length: count }, (_, i) => outcome(engine, 1 + ((i * 5) % 24), 30, i)))

const startDrill = ({ layout, rank, kind, step, operation }: DrillPoint): Promise<Engine> =>
  Engine.start(drillFlags(layout, { rank, kind, step, operation }))

describe('failure drills', () => {
  const points = drawPoints(POINTS, 4)
  it.each(points.map((point, i) => ({ ...point, i })))(
    '$i: $kind, rank $rank of $layout.tpSize, step $step, operation $operation',
    async point => {
      const started = await Deadline.of(
        startDrill(point).catch((error: unknown) => error as SwitchyardError),
        'the start',
      )
      if (!(started instanceof Engine)) {
        // The first vote may come before the last rank is known to be ready; only what a vote finds can fail a start.
        expect(point.kind).toMatch(/^(wrong_flag|wrong_plan)$/)
        expectNamed(started, point, [])
        return
      }
      const engine = started
      try {
        const ends = await Deadline.of(crowd(engine, 6), 'the requests')
        const failure = await Deadline.of(engine.failure, 'the failure')
        expectNamed(failure as SwitchyardError, point, engine.plan.programs)
        for (const end of ends) expect(end).toBe(failure)
        expect(() => engine.generate({ inputIds: [3], sampling: GREEDY })).toThrow(failure.message)
      } finally {
        await Deadline.of(engine.close(), 'the close')
      }
    },
  )

  it('reach every one of many streams, waiting ones too', async () => {
    const point: DrillPoint = { layout: TP4, rank: 3, kind: 'exit', step: 6, operation: 33 }
    const engine = await startDrill(point)
    try {
      const ends = await Deadline.of(crowd(engine, 150), 'the requests')
      const failure: unknown = await engine.failure
      expect(ends.filter(end => end === failure)).toHaveLength(150)
    } finally {
      await engine.close()
    }
  })

  const FUSED = [
    {
      fused: 'sum of experts into the norm',
      layout: { tpSize: 2, attnDpSize: 2, epSize: 2 },
      wanted: 'sum over all ranks +',
    },
    { fused: 'sum of heads into the norm', layout: TP4, wanted: 'sum over attention-TP +' },
    { fused: 'sum of whole rows into the norm', layout: TP4, wanted: 'sum over all ranks +' },
    { fused: 'gather of rows written in place', layout: TP4, wanted: 'moe_in: rows of all DP ranks' },
  ] as const
  const STRIKES = ['wrong_rows', 'throw', 'stall', 'exit'] as const
  it.each(FUSED.flatMap((place, i) => STRIKES.slice(i % 2).map(kind => ({ ...place, kind }))))(
    'in a fused boundary, $fused: $kind',
    async ({ layout: sizes, wanted, kind }) => {
      // One padding mode, so that an operation has one number.
      const layout = { ...sizes, dpGather: 'all_gatherv' } as const
      const flags = drillFlags(layout, null)
      const { operations } = planModel(flags, openDevice(flags)).programs[1]!.at(-1)!.program
      const operation = operations.findLastIndex(op => op.label.startsWith(wanted))
      expect(operations[operation]?.kind).toBe(wanted.startsWith('sum') ? 'reduce_norm' : 'all_gather')
      const point: DrillPoint = { layout, rank: 1, kind, step: 5, operation }
      const engine = await startDrill(point)
      try {
        const ends = await Deadline.of(crowd(engine, 6), 'the requests')
        const failure = (await Deadline.of(engine.failure, 'the failure')) as SwitchyardError
        expectNamed(failure, point, engine.plan.programs)
        expect(failure.message).toContain(operations[operation]!.label)
        expect(failure.message).toContain(`operation ${operation}`)
        for (const end of ends) expect(end).toBe(failure)
      } finally {
        await Deadline.of(engine.close(), 'the close')
      }
    },
  )

  it('in the middle of a long prompt', async () => {
    const point: DrillPoint = { layout: TP4, rank: 1, kind: 'throw', step: 3, operation: 20 }
    const engine = await startDrill(point)
    try {
      // 60 tokens in chunks of 16: the third step is the third chunk, and the last but one.
      const [end, logits] = await Deadline.of(
        Promise.all([outcome(engine, 60, 4, 1), engine.logits(prompt(60, 2)).catch((error: unknown) => error)]),
        'the requests',
      )
      expectNamed(end as Told, point, engine.plan.programs)
      expect(logits).toBe(end)
    } finally {
      await engine.close()
    }
  })

  it('while the engine is closed: running requests end with the error, and the close ends', async () => {
    const engine = await startDrill({ layout: TP4, rank: 2, kind: 'throw', step: 8, operation: 11 })
    const ends = crowd(engine, 6)
    await Deadline.of(engine.close(20_000), 'the close')
    for (const end of await ends) expect(end).toMatchObject({ code: 'SY_RANK_FAILED' })
  })

  it('a rank that stalls does not hold up the close', async () => {
    const flags = drillFlags(TP4, { rank: 2, kind: 'stall', step: 4, operation: 11 })
    const engine = await Engine.start({ ...flags, distTimeout: 60 })
    const ends = crowd(engine, 6)
    await untilStill(engine, 2)
    await Deadline.of(engine.close(), 'the close')
    for (const end of await ends) expect(end).toBe('abort')
  })

  it('reach who waits for a flush of the cache', async () => {
    const engine = await startDrill({ layout: TP4, rank: 2, kind: 'stall', step: 4, operation: 11 })
    const ends = crowd(engine, 6)
    await untilStill(engine, 2)
    const flushed = await Deadline.of(
      engine.flushCache().catch((error: unknown) => error),
      'the flush',
    )
    expect(flushed).toMatchObject({ code: 'SY_RANK_STALLED' })
    for (const end of await ends) expect(end).toBe(flushed)
    await engine.close()
  })

  it('a disagreement found by all ranks at once is told once', async () => {
    const engine = await startDrill({ layout: TP4, rank: 1, kind: 'wrong_plan', step: 6, operation: 0 })
    const ends = await Deadline.of(crowd(engine, 6), 'the requests')
    const first = await engine.failure
    for (const end of ends) expect(end).toBe(first)
    await engine.close()
    expect(await engine.failure).toBe(first)
  })
})

describe('a rank that does not start', () => {
  const start = (kind: 'throw' | 'exit' | 'stall') =>
    Engine.start({ ...drillFlags(TP4, { rank: 2, kind, step: 0, operation: 0 }), watchdogTimeout: 3 })

  it.each([
    { kind: 'throw', code: 'SY_RANK_FAILED' },
    { kind: 'exit', code: 'SY_RANK_DIED' },
    { kind: 'stall', code: 'SY_RANK_STALLED' },
  ] as const)('$kind: the start fails and names it', async ({ kind, code }) => {
    const failed = await Deadline.of(
      start(kind).then(
        () => null,
        (error: unknown) => error,
      ),
      'the start',
    )
    expect(failed).toMatchObject({ code, message: expect.stringMatching(/^rank 2 .*starting/) })
  })

  it('is refused when there is no such rank', async () => {
    const none = Engine.start(drillFlags(TP4, { rank: 4, kind: 'exit', step: 1, operation: 0 }))
    await expect(none).rejects.toMatchObject({ code: 'SY_CONFIG_BAD_VALUE' })
  })
})

describe('a thread that is ended from outside', () => {
  it('in the middle of kernels leaves the others, the process and later engines whole', async () => {
    const random = new CounterRandom(9, STREAM.wakeOrder)
    const flags = engineFlags({
      modelPath: fileURLToPath(new URL('../../models/demo', import.meta.url)),
      contextLength: 512,
      distTimeout: 10,
      ...{ tpSize: 2, attnDpSize: 2, epSize: 2, maxRunningRequests: 8, randomSeed: 0 },
    })
    const texts: string[] = []
    for (let i = 0; i < KILLS; i++) {
      const rank = random.below(2)
      const engine = await Engine.start(flags)
      try {
        texts.push(await text(engine))
        const ends = Promise.all([1, 2, 3, 4].map(salt => outcome(engine, 480, 30, salt)))
        await new Promise(resolve => setTimeout(resolve, random.below(60)))
        await engine.host.terminate(rank)
        for (const end of await Deadline.of(ends, 'the requests')) {
          expect(end).toMatchObject({ code: 'SY_RANK_DIED', message: expect.stringMatching(`^rank ${rank} is gone`) })
        }
      } finally {
        await Deadline.of(engine.close(), 'the close')
      }
    }
    expect(texts[0]).toMatch(/^(\d+ ){7}\d+$/)
    expect(new Set(texts).size).toBe(1)
  }, 120_000)
})
