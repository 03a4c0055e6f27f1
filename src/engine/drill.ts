// Failure drills: one rank misbehaves once, on purpose, at a chosen place (--failure-drill). The way to see, before it
// happens for real, that the others notice, say who and where, and end.
import { pbkdf2Sync } from 'node:crypto'
import { ConfigError } from '../config/config-errors.js'
import type { BoundOperation, RowValues } from '../program/index.js'

/** `stall` waits for ever in JavaScript, `hang` computes in native code, where even terminating its thread must wait. */
export const DRILL_KINDS = ['throw', 'stall', 'hang', 'exit', 'wrong_rows', 'wrong_plan', 'wrong_flag'] as const
export type DrillKind = (typeof DRILL_KINDS)[number]

export interface Drill {
  readonly rank: number
  readonly kind: DrillKind
  /** First step at or after which it happens, from 1; 0: before the rank is ready. */
  readonly step: number
  /** Operation of the program before which it happens; `wrong_rows` takes the next collective that sends rows of the plan (else the last). */
  readonly operation: number
}

/** @throws ConfigError when a field is not what it must be, or there is no such rank */
export function parseDrill(value: Readonly<Record<string, unknown>> | null, ranks: number): Drill | null {
  if (value === null) return null
  const whole = (key: string, otherwise: number) => (value[key] === undefined ? otherwise : Number(value[key]))
  const kind = DRILL_KINDS.find(k => k === value['kind'])
  // Ranks can disagree in steps only; step 0 is before the first.
  const first = kind?.startsWith('wrong') ? 1 : 0
  const drill = { rank: whole('rank', 0), step: Math.max(whole('step', 1), first), operation: whole('operation', 0) }
  if (kind && drill.rank < ranks && Object.values(drill).every(n => Number.isInteger(n) && n >= 0)) {
    return { ...drill, kind }
  }
  throw new ConfigError('SY_CONFIG_BAD_VALUE', {
    flag: '--failure-drill',
    value: JSON.stringify(value),
    expected: `{"rank": 0..${ranks - 1}, "step": S, "operation": O, "kind": ${DRILL_KINDS.join(' | ')}}`,
    suggestion: '',
  })
}

/** Collectives that go on with rows that were sent before: they take none from the plan. */
const LATER_STAGES: ReadonlySet<BoundOperation['kind']> = new Set([
  'dispatch_receive',
  'combine_send',
  'combine_receive',
])

/** The drill of one rank; does nothing on the others. */
export class DrillMaster {
  readonly #drill: Drill | null
  #step = 0
  #done = false

  constructor(drill: Drill | null, rank: number) {
    this.#drill = drill?.rank === rank ? drill : null
  }

  /** Called while the rank is built, before it is ready. */
  starting(): void {
    if (this.#drill?.step === 0 && this.#due()) misbehave(this.#drill.kind, null)
  }

  beginStep(step: number): void {
    this.#step = step
  }

  /** Bits by which a vote's hashes are wrong: of the flags from the start, of the plan from the drill's step on. */
  get wrongConfig(): number {
    return this.#drill?.kind === 'wrong_flag' ? 1 : 0
  }

  get wrongPlan(): number {
    return this.#drill?.kind === 'wrong_plan' && this.#step >= this.#drill.step ? 1 : 0
  }

  /** Operations with the misbehaving one among them. */
  rig(operations: readonly BoundOperation[]): readonly BoundOperation[] {
    const drill = this.#drill
    if (!drill || drill.kind === 'wrong_plan' || drill.kind === 'wrong_flag') return operations
    const from = Math.min(drill.operation, operations.length - 1)
    const collectives = operations.flatMap((op, i) =>
      op.how === 'collective' && !LATER_STAGES.has(op.kind) ? [i] : [],
    )
    const collective = collectives.find(i => i >= from) ?? collectives.at(-1)
    const target = drill.kind === 'wrong_rows' ? collective : from
    return operations.map((op, index) => {
      if (index !== target) return op
      if (op.how === 'collective') {
        return { ...op, run: (values: RowValues) => op.run(this.#due() ? misbehave(drill.kind, values) : values) }
      }
      if (op.how === 'local')
        return { ...op, run: (values: RowValues) => op.run(this.#due() ? misbehave(drill.kind, values) : values) }
      return {
        ...op,
        kernel: (rows: number) => {
          if (this.#due()) misbehave(drill.kind, null)
          op.kernel(rows)
        },
      }
    })
  }

  #due(): boolean {
    const due = !this.#done && this.#drill !== null && this.#step >= this.#drill.step
    if (due) this.#done = true
    return due
  }
}

function misbehave<T extends RowValues | null>(kind: DrillKind, values: T): T {
  if (kind === 'throw') throw new Error('failure drill')
  if (kind === 'exit') process.exit(7)
  if (kind === 'stall') Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0)
  // Some twenty minutes of native code that nothing can interrupt, as a kernel that does not end.
  if (kind === 'hang') pbkdf2Sync('drill', 'salt', 2 ** 31 - 1, 64, 'sha512')
  if (kind !== 'wrong_rows' || values === null) return values
  const more = (counts: readonly number[], member: number) => counts.map((n, i) => (i === member ? n + 1 : n))
  const { rows, counts, member } = values
  return {
    ...values,
    rows: {
      ...rows,
      padded: rows.padded + 1,
      gathered: rows.gathered + 1,
      tokens: rows.tokens + 1,
      slice: rows.slice + 1,
    },
    counts: {
      dp: more(counts.dp, member.dp),
      attnTp: more(counts.attnTp, member.attnTp),
      tp: more(counts.tp, member.tp),
      logits: more(counts.logits, member.logits),
    },
  }
}
