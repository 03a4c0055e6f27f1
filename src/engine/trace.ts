// Traces of an engine: its ranks' rings, switched on and off together, read with what the programs' operations are.

import type { RankCoordinates } from '../parallel/index.js'
import { type Operation, type Program, type ProgramGroup, trafficOf } from '../program/index.js'
import { PHASES } from '../runtime/control.js'
import {
  isRecording,
  openTraceRing,
  type RankEvents,
  readTrace,
  recordsWritten,
  switchRecording,
  type Trace,
  type TracedOperation,
  type TraceRing,
} from '../trace/index.js'
import type { RankLaunch } from './launch.js'
import type { ModelPlan } from './load-model.js'

interface TracedLaunch {
  readonly launch: RankLaunch
  readonly ring: TraceRing
  from: number
}

export class EngineTrace {
  readonly #plan: ModelPlan
  readonly #ranks: readonly TracedLaunch[]

  private constructor(plan: ModelPlan, ranks: readonly TracedLaunch[]) {
    this.#plan = plan
    this.#ranks = ranks
  }

  /** null when the ranks were launched without rings. */
  static of(plan: ModelPlan, launches: readonly RankLaunch[]): EngineTrace | null {
    const ranks = launches.flatMap(launch =>
      launch.trace ? [{ launch, ring: openTraceRing(launch.trace), from: 0 }] : [],
    )
    return ranks.length === launches.length ? new EngineTrace(plan, ranks) : null
  }

  /**
   * Steps that begin from now on are recorded; what was recorded before is forgotten. A rank may be past the beginning of a
   * step that others have not begun: a step is recorded by all once `recording` is true (`Engine.startTrace`).
   */
  start(): void {
    for (const rank of this.#ranks) {
      rank.from = recordsWritten(rank.ring)
      switchRecording(rank.ring, true)
    }
  }

  /** Whether every rank is in a step that is recorded. */
  get recording(): boolean {
    return this.#ranks.every(({ ring }) => isRecording(ring))
  }

  /** The step that runs is recorded to its end, further ones are not. */
  stop(): void {
    for (const { ring } of this.#ranks) switchRecording(ring, false)
  }

  /**
   * What ranks have recorded since `start`, from the first step with something to do to the last one, of those that all
   * ranks have recorded: a step makes sense only with all of its ranks. A rank writes a step down when its next one begins:
   * the last one is there for certain once the engine is closed.
   */
  read(): Trace {
    const { variants } = this.#plan
    const recorded = this.#ranks.map(({ ring, from }) => readTrace(ring, from))
    const [first, last] = commonSteps(recorded)
    const ranks = this.#ranks.map(({ launch }, index) => {
      const { steps, lost } = recorded[index]!
      return {
        rank: launch.coordinates.rank,
        name: nameOf(launch.coordinates),
        programs: launch.programs.map((program, i) => ({
          name: `${variants[i]!.padding}, dispatch ${variants[i]!.dispatch}`,
          operations: program.operations.map((op, index) => traced(op, index, program, launch)),
        })),
        ...(launch.device.kind === 'cpu' ? {} : { onDevice: true }),
        events: { steps: steps.filter(({ step }) => step >= first && step <= last), lost },
      }
    })
    return { ranks, phases: PHASES }
  }
}

/** Numbers of the first and the last step that all ranks have recorded and that found something to do. */
function commonSteps(ranks: readonly RankEvents[]): readonly [number, number] {
  const busy = ranks.map(({ steps }) => new Set(steps.flatMap(({ step, rows }) => (rows === null ? [] : [step]))))
  const common = [...(busy[0] ?? [])].filter(step => busy.every(steps => steps.has(step)))
  return [common[0] ?? Number.POSITIVE_INFINITY, common.at(-1) ?? Number.NEGATIVE_INFINITY]
}

const nameOf = ({ rank, attnDp, attnTp, ep }: RankCoordinates): string =>
  `rank ${rank} (attn_dp ${attnDp}, attn_tp ${attnTp}, ep ${ep})`

function traced(op: Operation, index: number, program: Program, launch: RankLaunch): TracedOperation {
  const ranks = (group: ProgramGroup): readonly number[] => launch.groups[group].ranks
  const { kind, layer, label } = op
  const sentBy = senderOf(program, index)
  const group = sentBy !== index ? ranks('tp') : 'group' in op.args ? ranks(op.args.group) : []
  return { kind, layer, label, group, sentBy, bytes: rows => trafficOf(op, rows, g => ranks(g).length) }
}

/** The second half of a dispatch or combine takes in what the first half of it sent. */
function senderOf(program: Program, index: number): number {
  const { kind } = program.operations[index]!
  const first = kind === 'dispatch_receive' ? 'dispatch_send' : kind === 'combine_receive' ? 'combine_send' : null
  if (first === null) return index
  for (let i = index - 1; i >= 0; i--) if (program.operations[i]!.kind === first) return i
  return index
}
