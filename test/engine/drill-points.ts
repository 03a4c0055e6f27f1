// Where failure drills strike: layouts, points drawn from a seed, and what the error of each kind must name.
// Plain data and checks of messages; engines and processes are the tests' own.
import { expect } from 'vitest'
import type { EngineFlags } from '../../src/config/flags.js'
import type { Drill, DrillKind } from '../../src/engine/drill.js'
import type { ModelPlan } from '../../src/engine/load-model.js'
import { CounterRandom, STREAM } from '../../src/runtime/random.js'
import { fixturePath, flagsFor, type GivenFlags } from './harness.js'

/** Ranks may wait one second for each other. */
export const DIST_TIMEOUT = 1

export const DRILL_LAYOUTS: readonly GivenFlags[] = [
  { tpSize: 4, attnDpSize: 2, epSize: 4 },
  { tpSize: 3, attnDpSize: 3, epSize: 3, epNumRedundantExperts: 2 },
  { tpSize: 2, attnDpSize: 2, epSize: 2 },
]

/** Kinds that leave the process alive: what a thread in native code does to it, only a process of its own can show. */
const KINDS = ['throw', 'stall', 'exit', 'wrong_rows', 'wrong_plan', 'wrong_flag'] as const satisfies DrillKind[]

export interface DrillPoint extends Drill {
  readonly layout: GivenFlags
}

/** Points at any place of a forward pass, from the first steps (prompts) to the last tokens. */
export function drawPoints(count: number, seed: number): DrillPoint[] {
  const random = new CounterRandom(seed, STREAM.wakeOrder)
  return Array.from({ length: count }, (_, i) => {
    const layout = DRILL_LAYOUTS[random.below(DRILL_LAYOUTS.length)]!
    return {
      layout,
      kind: KINDS[i % KINDS.length]!,
      rank: random.below(layout.tpSize!),
      step: 1 + random.below(12),
      operation: random.below(80),
    }
  })
}

export const drillFlags = (layout: GivenFlags, drill: Drill | null): EngineFlags =>
  flagsFor(fixturePath('deepseek_v3'), {
    ...layout,
    distTimeout: DIST_TIMEOUT,
    chunkedPrefillSize: 16,
    failureDrill: drill === null ? null : { ...drill },
  })

/** An error as far as tests look at it. */
export interface Told {
  readonly code: string
  readonly message: string
}

const CODES: Readonly<Record<DrillKind, string>> = {
  throw: 'SY_RANK_FAILED',
  stall: 'SY_RANK_STALLED',
  hang: 'SY_RANK_STALLED',
  exit: 'SY_RANK_DIED',
  wrong_rows: 'SY_RANK_DISAGREES',
  wrong_plan: 'SY_RANK_DISAGREES',
  wrong_flag: 'SY_RANK_DISAGREES',
  bad_page: 'SY_CUDA_BAD_INDEX',
  bad_address: 'SY_CUDA_CALL',
  spin: 'SY_RANK_STALLED',
}
const FIELDS: Partial<Record<DrillKind, string>> = {
  wrong_rows: 'rows',
  wrong_plan: 'previous_plan_hash',
  wrong_flag: 'config_hash',
}

type Operations = ModelPlan['programs'][number][number]['program']['operations']

/**
 * The error names the rank at fault, the step, and layer, operation and field where the kind has one.
 * @param strikes which operation of a program a drill strikes
 */
export function expectNamed(
  told: Told,
  { kind, rank, operation }: Drill,
  programs: ModelPlan['programs'],
  strikes = (operations: Operations) => Math.min(operation, operations.length - 1),
): void {
  const where = `${kind} of rank ${rank} before operation ${operation}: ${told.message}`
  expect(told.code, where).toBe(CODES[kind])
  expect(told.message, where).toMatch(/step \d+/)
  expect(told.message.length, where).toBeLessThan(1500)
  const field = FIELDS[kind]
  if (field !== undefined) {
    expect(told.message, where).toContain(`: ${field} is `)
    expect(told.message, where).toMatch(new RegExp(`rank ${rank}\\b|ranks [\\d, ]*\\b${rank}\\b`))
    if (kind === 'wrong_rows') expect(told.message, where).toMatch(/operation \d+/)
    return
  }
  expect(told.message, where).toMatch(new RegExp(`^rank ${rank} `))
  // The drill strikes in whichever program runs first after its step; past its end, at the last operation.
  const places = programs[rank]!.map(({ program: { operations } }) => {
    const at = strikes(operations)
    const { layer, kind: name, label } = operations[at]!
    return `${layer < 0 ? '' : `layer ${layer}, `}operation ${at} (${name}: ${label})`
  })
  expect(
    places.filter(place => told.message.includes(place)).length,
    `${where} names ${places.join(' or ')}`,
  ).toBeGreaterThan(0)
}
