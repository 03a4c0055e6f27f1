// Failure drills of ranks on GPUs, in engines of this process: everyone who waits gets an error that names rank, step and operation;
// no token of a step that went wrong is told; the close ends; and the GPU can be used again. What spoils the GPU for the process
// is in engine-faults.gpu.test.ts.
import { beforeAll, describe, expect, it } from 'vitest'
import type { SwitchyardError } from '../../src/config/errors.js'
import { Engine, GREEDY } from '../../src/engine/index.js'
import { fuseOperations } from '../../src/program/fuse.js'
import type { Operation } from '../../src/program/index.js'
import { Deadline } from '../engine/deadline.js'
import { type DrillPoint, expectNamed } from '../engine/drill-points.js'
import { fixturePath, flagsFor, type GivenFlags } from '../engine/harness.js'
import { ONE_RANK, TWO_RANKS } from './models.js'

const TWO: GivenFlags = { ...TWO_RANKS, deepepNumMaxDispatchTokensPerRank: 64 }
const LAST = 10_000
const TOKENS = 24
const LIMIT_MS = 40_000

const start = ({ layout, rank, kind, step, operation }: DrillPoint, given: GivenFlags = {}): Promise<Engine> => {
  // Long enough for kernels that are loaded late, but where the watchdog is what counts.
  const seconds = kind === 'stall' ? 4 : 30
  const flags = { ...layout, ...given, distTimeout: seconds, watchdogTimeout: seconds, chunkedPrefillSize: 16 }
  return Engine.start(flagsFor(fixturePath('deepseek_v3'), { ...flags, failureDrill: { rank, kind, step, operation } }))
}

const prompts = [1, 5, 20, 3].map((length, salt) => Array.from({ length }, (_, i) => 3 + ((i * 7 + salt * 13) % 150)))

interface Told {
  readonly tokens: readonly number[]
  readonly error: unknown
}

/** What a client is told of each prompt until it ends, or until the engine does. */
const crowd = (engine: Engine): Promise<Told[]> =>
  Promise.all(
    prompts.map(async inputIds => {
      const tokens: number[] = []
      try {
        const sampling = { ...GREEDY, maxTokens: TOKENS, ignoreEos: true }
        for await (const event of engine.generate({ inputIds, sampling })) tokens.push(...event.tokenIds)
        return { tokens, error: null }
      } catch (error) {
        return { tokens, error }
      }
    }),
  )

/** The bound operation that a drill strikes: the first of a group of fused ones. */
const strikesFirst = (operation: number) => (operations: readonly Operation[]) => {
  const firsts = fuseOperations(operations).map(group => group.first)
  return firsts.find(first => first >= operation) ?? firsts.at(-1)!
}
const firstAttention = (operations: readonly Operation[]) => operations.findIndex(op => op.kind === 'attention')

let expected: readonly Told[] = []
beforeAll(async () => {
  await using engine = await Engine.start(flagsFor(fixturePath('deepseek_v3'), { ...ONE_RANK, chunkedPrefillSize: 16 }))
  expected = await crowd(engine)
  for (const { tokens, error } of expected) expect([tokens.length, error]).toEqual([TOKENS, null])
})

async function rehearse(point: DrillPoint, given: GivenFlags = {}): Promise<void> {
  const { kind, operation } = point
  const engine = await Deadline.of(
    start(point, given).catch((error: unknown) => error as SwitchyardError),
    'the start',
    LIMIT_MS,
  )
  if (!(engine instanceof Engine)) {
    // The first vote may come before the last rank is known to be ready.
    expect(kind, `${engine.code}: ${engine.message}`).toBe('wrong_flag')
    expectNamed(engine, point, [])
    return
  }
  try {
    const ends = await Deadline.of(crowd(engine), 'the requests', LIMIT_MS)
    const failure = (await Deadline.of(engine.failure, 'the failure')) as SwitchyardError
    console.info(`${kind}: ${failure.code}: ${failure.message}`)
    expectNamed(failure, point, engine.plan.programs, kind === 'bad_page' ? firstAttention : strikesFirst(operation))
    ends.forEach(({ tokens, error }, i) => {
      expect(error).toBe(failure)
      // Between two GPUs and one, roundings may differ; within one layout nothing may.
      if (point.layout === ONE_RANK) expect(tokens).toEqual(expected[i]!.tokens.slice(0, tokens.length))
    })
    expect(() => engine.generate({ inputIds: [3], sampling: GREEDY })).toThrow(failure.message)
  } finally {
    await Deadline.of(engine.close(), 'the close')
  }
}

const point = (layout: GivenFlags, rank: number, kind: DrillPoint['kind'], step: number, operation: number) => ({
  ...{ layout, rank, kind, step, operation },
})

describe('a rank on a GPU', () => {
  it.each([
    point(ONE_RANK, 0, 'throw', 1, 0),
    // In the middle of fused operations; in a decode step, which would be replayed from its graph.
    point(ONE_RANK, 0, 'throw', 9, 6),
    point(ONE_RANK, 0, 'throw', 12, LAST),
    point(ONE_RANK, 0, 'exit', 8, 20),
    point(ONE_RANK, 0, 'stall', 10, 30),
    point(ONE_RANK, 0, 'bad_page', 1, 0),
    point(ONE_RANK, 0, 'bad_page', 14, 0),
  ])('$kind in step $step before operation $operation', rehearsed => rehearse(rehearsed))

  it.each([
    ['without graphs', { disableCudaGraph: true }],
    ['step by step', { disableOverlapSchedule: true }],
  ] satisfies [string, GivenFlags][])('bad_page %s', (_, given) =>
    rehearse(point(ONE_RANK, 0, 'bad_page', 11, 0), given),
  )

  it('before it is ready', async () => {
    const failed = await Deadline.of(
      start(point(ONE_RANK, 0, 'throw', 0, 0)).then(
        () => null,
        (error: unknown) => error,
      ),
      'the start',
      LIMIT_MS,
    )
    expect(failed).toMatchObject({ code: 'SY_RANK_FAILED', message: expect.stringMatching(/^rank 0 .*starting/) })
  })
})

describe(`two ranks (${TWO.device})`, () => {
  it.each([
    point(TWO, 1, 'wrong_plan', 6, 0),
    point(TWO, 1, 'wrong_flag', 1, 0),
    point(TWO, 1, 'bad_page', 9, 0),
    point(TWO, 0, 'exit', 7, LAST),
    // Last: the other rank's kernels wait for rows of this one, for 20 s, and nobody waits for them.
    point(TWO, 0, 'throw', 5, 0),
  ])('$kind of rank $rank in step $step before operation $operation', rehearsed => rehearse(rehearsed))
})

describe('drills that could not strike', () => {
  it('are refused at the start', async () => {
    await expect(start(point(TWO, 1, 'wrong_rows', 3, 0))).rejects.toMatchObject({ code: 'SY_CONFIG_NOT_SUPPORTED' })
    await expect(start(point(ONE_RANK, 0, 'wrong_plan', 3, 0))).rejects.toMatchObject({
      code: 'SY_CONFIG_NOT_SUPPORTED',
    })
  })
})
