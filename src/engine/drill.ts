// Failure drills: one rank misbehaves once, on purpose, at a chosen place (--failure-drill). The way to see, before it
// happens for real, that the others notice, say who and where, and end.
import { pbkdf2Sync } from 'node:crypto'
import { ConfigError } from '../config/config-errors.js'
import type { BoundOperation, RowValues } from '../program/index.js'

/**
 * `stall` waits for ever in JavaScript, `hang` computes in native code, where even terminating its thread must wait. On a GPU only:
 * `bad_page` (a page table points outside the cache), `bad_address` (a kernel reads where nothing is), `spin` (a kernel that does not end).
 */
export const DRILL_KINDS = [
  ...(['throw', 'stall', 'hang', 'exit', 'wrong_rows', 'wrong_plan', 'wrong_flag'] as const),
  ...(['bad_page', 'bad_address', 'spin'] as const),
] as const
export type DrillKind = (typeof DRILL_KINDS)[number]

/** Kinds that a kernel does, before an operation. */
export type GpuStrike = Extract<DrillKind, 'bad_address' | 'spin'>

const ON_GPU: readonly DrillKind[] = ['bad_page', 'bad_address', 'spin']
/** Kinds that others must contradict. */
const DISAGREEMENTS: readonly DrillKind[] = ['wrong_rows', 'wrong_plan', 'wrong_flag']

export interface Drill {
  readonly rank: number
  readonly kind: DrillKind
  /** First step at or after which it happens, from 1; 0: before the rank is ready. */
  readonly step: number
  /** Operation of the program before which it happens; `wrong_rows` takes the next collective that sends rows of the plan (else the last). */
  readonly operation: number
}

/**
 * @param device kind of the device that ranks compute on: "cpu", "cuda"
 * @throws ConfigError when a field is not what it must be, there is no such rank, or nothing would go wrong
 */
export function parseDrill(
  value: Readonly<Record<string, unknown>> | null,
  ranks: number,
  device: string,
): Drill | null {
  if (value === null) return null
  const whole = (key: string, otherwise: number) => (value[key] === undefined ? otherwise : Number(value[key]))
  const kind = DRILL_KINDS.find(k => k === value['kind'])
  // Ranks can disagree in steps only, and kernels run in steps only; step 0 is before the first.
  const first = kind && (DISAGREEMENTS.includes(kind) || ON_GPU.includes(kind)) ? 1 : 0
  const drill = { rank: whole('rank', 0), step: Math.max(whole('step', 1), first), operation: whole('operation', 0) }
  if (kind && drill.rank < ranks && Object.values(drill).every(n => Number.isInteger(n) && n >= 0)) {
    refuseDrill(kind, ranks, device)
    return { ...drill, kind }
  }
  throw new ConfigError('SY_CONFIG_BAD_VALUE', {
    flag: '--failure-drill',
    value: JSON.stringify(value),
    expected: `{"rank": 0..${ranks - 1}, "step": S, "operation": O, "kind": ${DRILL_KINDS.join(' | ')}}`,
    suggestion: '',
  })
}

/** A drill that could not strike would look like one that was survived. */
function refuseDrill(kind: DrillKind, ranks: number, device: string): void {
  const refuse = (where: string, instead: string): never => {
    throw new ConfigError('SY_CONFIG_NOT_SUPPORTED', { flag: '--failure-drill', value: `${kind} ${where}`, instead })
  }
  if (ON_GPU.includes(kind) && device === 'cpu') refuse('with --device cpu', 'use --device cuda, or another kind')
  if (kind === 'wrong_rows' && device !== 'cpu')
    refuse(`with --device ${device}`, 'use wrong_plan: on GPUs no collective carries rows that others could compare')
  if (ranks === 1 && DISAGREEMENTS.includes(kind)) refuse('with one rank', 'use several ranks, or another kind')
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

  /** What a kernel of this rank is to do wrong, or null. */
  get gpuStrike(): GpuStrike | null {
    const kind = this.#drill?.kind
    return kind === 'bad_address' || kind === 'spin' ? kind : null
  }

  /** Whether an operation of this step may be the one that strikes: it must then be launched by itself. */
  get strikesNow(): boolean {
    return !this.#done && this.#drill !== null && this.#step >= this.#drill.step && this.#strikesOperation
  }

  /** Whether the page table of this step, which has a sequence, is to be spoiled. */
  takeBadPage(): boolean {
    return this.#drill?.kind === 'bad_page' && this.#due()
  }

  get #strikesOperation(): boolean {
    return !['wrong_plan', 'wrong_flag', 'bad_page'].includes(this.#drill?.kind ?? '')
  }

  /**
   * Operations with the misbehaving one among them: the first that is not before the drill's, else the last.
   * @param strike queues the kernel of `gpuStrike`
   */
  rig(operations: readonly BoundOperation[], strike: (() => void) | null = null): readonly BoundOperation[] {
    const drill = this.#drill
    if (!drill || !this.#strikesOperation) return operations
    // On a GPU several operations of a program may be bound as one.
    const found = operations.findIndex(op => op.index >= drill.operation)
    const from = found < 0 ? operations.length - 1 : found
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
          if (this.#due()) (strike ?? (() => misbehave(drill.kind, null)))()
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
