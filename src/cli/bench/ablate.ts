// `bench engine --ablate dispatch,padding`: the same load under every choice of an axis, the other flags as given, in one
// table. One axis is varied at a time. Choices run one after another on one machine, so read differences of a few percent
// as noise.
import { ConfigError } from '../../config/config-errors.js'
import type { EngineFlags } from '../../config/flags.js'
import type { DpRankState } from '../../engine/request.js'
import type { CliIo } from '../io.js'
import { table } from '../report.js'
import { version } from '../version.js'
import { type BenchMachine, type BenchOptions, benchMachine, measureEngine, roomFor } from './measure-engine.js'
import type { Speed } from './run.js'

export const ABLATION_AXES = ['dispatch', 'padding'] as const
export type AblationAxis = (typeof ABLATION_AXES)[number]

export interface Ablation {
  readonly axis: AblationAxis
  readonly choice: string
  readonly flags: EngineFlags
}

const DISPATCHES = ['none', 'normal', 'low_latency', 'auto'] as const
const GATHERS = ['auto', 'all_gather', 'all_gatherv', 'all_reduce'] as const

/** Every choice of the axes. Pure low-latency gets as many slots as a step can bring: it has no other mode to go to. */
export function ablations(flags: EngineFlags, axes: readonly AblationAxis[]): Ablation[] {
  const slots = flags.chunkedPrefillSize + flags.maxRunningRequests
  const dispatch = (choice: (typeof DISPATCHES)[number]): EngineFlags => {
    if (choice === 'none') {
      // Flags of an all-to-all would only be noted as having no effect.
      const off = { deepepMode: 'auto', deepepConfig: null, deepepDispatcherOutputDtype: 'auto' } as const
      return { ...flags, moeA2aBackend: 'none', epSize: flags.epSize ?? flags.tpSize, ...off }
    }
    return {
      ...flags,
      moeA2aBackend: 'deepep',
      deepepMode: choice,
      ...(choice === 'low_latency'
        ? {
            deepepNumMaxDispatchTokensPerRank: Math.max(slots, flags.deepepNumMaxDispatchTokensPerRank),
            deepepConfig: null,
          }
        : {}),
    }
  }
  return axes.flatMap((axis): Ablation[] =>
    axis === 'dispatch'
      ? DISPATCHES.map(choice => ({ axis, choice, flags: dispatch(choice) }))
      : GATHERS.map(choice => ({ axis, choice, flags: { ...flags, dpGather: choice } })),
  )
}

/** @throws ConfigError naming the axes there are */
export function parseAxes(text: string): readonly AblationAxis[] {
  const names = text.split(',').map(name => name.trim())
  const axes = ABLATION_AXES.filter(axis => names.includes(axis))
  if (names.length === axes.length) return axes
  throw new ConfigError('SY_CONFIG_BAD_VALUE', {
    flag: '--ablate',
    value: JSON.stringify(text.slice(0, 60)),
    expected: `some of ${ABLATION_AXES.join(', ')}, each once, with commas between them`,
    suggestion: '',
  })
}

export interface AblationRow extends Speed {
  readonly axis: AblationAxis
  readonly choice: string
  /** Steps of the whole run by dispatch mode. */
  readonly dispatchSteps: DpRankState['dispatchSteps']
}

export interface AblationReport {
  readonly version: string
  readonly machine: BenchMachine
  readonly model: string
  readonly ranks: number
  readonly promptTokens: number
  readonly outputTokens: number
  readonly seed: number
  readonly results: readonly AblationRow[]
}

export async function ablateEngine(
  io: CliIo,
  flags: EngineFlags,
  options: BenchOptions,
  axes: readonly AblationAxis[],
): Promise<AblationReport> {
  const results: AblationRow[] = []
  let facts = { model: '', ranks: 0 }
  for (const { axis, choice, flags: varied } of ablations(roomFor(flags, options), axes)) {
    io.err(`${axis} ${choice}\n`)
    await measureEngine(io, varied, options, (engine, speeds) => {
      const { dispatchSteps } = engine.state()[0]!
      facts = { model: engine.modelName, ranks: engine.plan.topology.sizes.tp }
      results.push(...speeds.map(speed => ({ axis, choice, ...speed, dispatchSteps })))
    })
  }
  const { promptTokens, outputTokens, seed } = options
  return { version, machine: benchMachine(), ...facts, promptTokens, outputTokens, seed, results }
}

export function ablationText({ machine, ...report }: AblationReport): string {
  const rows = report.results.map(row => [
    row.axis,
    row.choice,
    String(row.batch),
    row.promptTokensPerSecond.toFixed(0),
    row.decodeTokensPerSecond.toFixed(1),
    row.decodeStepMs.toFixed(3),
    row.firstTokenMs.toFixed(1),
    String(row.dispatchSteps.normal),
    String(row.dispatchSteps.low_latency),
  ])
  const speeds = ['prompt tok/s', 'decode tok/s', 'step ms', 'first token ms']
  const head = ['axis', 'choice', 'streams', ...speeds, 'normal steps', 'low-latency steps']
  return `Switchyard ${report.version} on ${machine.processor}, ${machine.cores} cores, Node ${machine.node}
${report.model} over ${report.ranks} ranks; prompts of ${report.promptTokens} random tokens, ${report.outputTokens} out, seed ${report.seed}
steps are those of the whole run, all batch sizes and the warm-up together

${table(head, rows)}
`
}
