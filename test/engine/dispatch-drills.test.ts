// Failure drills inside the stages of a dispatch and its combine, at points drawn from a seed, in engines of real worker threads:
// everyone who waits gets an error that names rank and place, nobody waits for ever, and the process lives.
import { describe, expect, it } from 'vitest'
import type { SwitchyardError } from '../../src/config/errors.js'
import { createCpuDevice } from '../../src/device/cpu/index.js'
import type { Drill } from '../../src/engine/drill.js'
import { Engine, GREEDY } from '../../src/engine/index.js'
import { planModel } from '../../src/engine/load-model.js'
import { CounterRandom, STREAM } from '../../src/runtime/random.js'
import { Deadline } from './deadline.js'
import { SMALL_RINGS } from './dispatch-layouts.js'
import { drillFlags, expectNamed, type Told } from './drill-points.js'
import type { GivenFlags } from './harness.js'

const POINTS = process.env['SWITCHYARD_TEST_FULL'] === '1' ? 100 : 10

const STAGES = ['dispatch_send', 'dispatch_receive', 'dispatched_experts', 'combine_send', 'combine_receive']
const KINDS = ['throw', 'stall', 'exit', 'wrong_rows'] as const

const tp = (tpSize: number, attnDpSize: number): GivenFlags => ({
  ...{ moeA2aBackend: 'deepep', tpSize, attnDpSize, epSize: tpSize, maxRunningRequests: 8 },
})
const MODES: readonly { readonly name: string; readonly flags: GivenFlags }[] = [
  { name: 'normal, direct', flags: { ...tp(4, 2), deepepMode: 'normal' } },
  { name: 'normal, rings', flags: { ...tp(2, 2), deepepMode: 'normal', deepepConfig: SMALL_RINGS } },
  { name: 'low_latency, fp8', flags: { ...tp(4, 4), deepepMode: 'low_latency', deepepDispatcherOutputDtype: 'fp8' } },
  {
    name: 'auto, bf16',
    flags: { ...tp(2, 1), deepepNumMaxDispatchTokensPerRank: 3, deepepDispatcherOutputDtype: 'bf16' },
  },
]

interface Point extends Drill {
  readonly mode: string
  readonly stage: string
  readonly flags: GivenFlags
}

/** Equal programs in every mode of a model: the stages lie at the same operations. */
function stagesOf(flags: GivenFlags): { readonly kind: string; readonly operation: number }[] {
  const { programs } = planModel(drillFlags(flags, null), createCpuDevice({ kernels: 'auto' }))
  const { operations } = programs[0]![0]!.program
  return operations.flatMap(({ kind }, operation) => (STAGES.includes(kind) ? [{ kind, operation }] : []))
}

function drawPoints(count: number, seed: number): Point[] {
  const random = new CounterRandom(seed, STREAM.wakeOrder)
  return Array.from({ length: count }, (_, i) => {
    const { name, flags } = MODES[i % MODES.length]!
    const kind = KINDS[(i + Math.floor(i / KINDS.length)) % KINDS.length]!
    const stages = stagesOf(flags).filter(s => kind !== 'wrong_rows' || s.kind === 'dispatch_send')
    const { kind: stage, operation } = stages[random.below(stages.length)]!
    const [rank, step] = [random.below(flags.tpSize!), 1 + random.below(12)]
    return { mode: name, stage, flags, kind, rank, step, operation }
  })
}

/** How one request ended: 'done', or the error. */
async function outcome(engine: Engine, promptLength: number, salt: number): Promise<'done' | Told> {
  const inputIds = Array.from({ length: promptLength }, (_, i) => 3 + ((i * 7 + salt * 13) % 150))
  try {
    for await (const _ of engine.generate({ inputIds, sampling: { ...GREEDY, maxTokens: 30, ignoreEos: true } }));
    return 'done'
  } catch (error) {
    return error as SwitchyardError
  }
}

describe('failure drills inside dispatch and combine', () => {
  it.each(drawPoints(POINTS, 6).map((point, i) => ({ ...point, i })))(
    '$i: $mode, $kind in $stage, rank $rank, step $step, operation $operation',
    async ({ flags, rank, kind, step, operation }) => {
      const drill: Drill = { rank, kind, step, operation }
      const engine = await Deadline.of(Engine.start(drillFlags(flags, drill)), 'the start')
      try {
        const ends = await Deadline.of(
          Promise.all(Array.from({ length: 6 }, (_, i) => outcome(engine, 1 + ((i * 5) % 24), i))),
          'the requests',
        )
        const failure = (await Deadline.of(engine.failure, 'the failure')) as SwitchyardError
        // The row too many may not fit, or name no expert: then the rank itself finds it.
        const selfFound = kind === 'wrong_rows' && failure.code === 'SY_RANK_FAILED'
        expectNamed(failure, selfFound ? { ...drill, kind: 'throw' } : drill, engine.plan.programs)
        if (selfFound) expect(failure.message).toMatch(/SY_EP_(TOO_MANY_TOKENS|BAD_EXPERT)/)
        for (const end of ends) expect(end).toBe(failure)
      } finally {
        await Deadline.of(engine.close(), 'the close')
      }
    },
  )
})
