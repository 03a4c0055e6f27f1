// What `switchyard explain` says about a model and its flags before anything is allocated: plain data.
import type { EngineFlags } from '../config/flags.js'
import { describeOperations, type PrintedOperation, planArena, printProgram } from '../program/index.js'
import { openDevice, planModel } from './load-model.js'
import { kvBytesPerToken } from './sizing.js'

export interface ExplainReport {
  readonly model: {
    readonly name: string
    readonly architecture: string
    readonly layers: number
    readonly dtype: string
  }
  readonly memory: {
    readonly weightBytes: number
    readonly kvBytesPerToken: number
    readonly kvTokens: number
    readonly kvBytes: number
    readonly arenaBytes: number
    readonly arenaUnsharedBytes: number
  }
  readonly limits: {
    readonly contextLength: number
    readonly tokensPerStep: number
    readonly sequences: number
    readonly pageSize: number
  }
  readonly operations: readonly PrintedOperation[]
  /** The program as text, equal layers folded. */
  readonly programText: readonly string[]
}

export function explainModel(flags: EngineFlags): ExplainReport {
  const plan = planModel(flags, openDevice(flags))
  const { program } = plan.programs[0]!.SUM_LEN
  const arena = planArena(program)
  const perToken = kvBytesPerToken(plan.spec, plan.topology.sizes.attnTp)
  const { limits } = plan
  return {
    model: {
      name: plan.name,
      architecture: plan.spec.architecture,
      layers: plan.spec.layers.length,
      dtype: plan.dtype === 'f32' ? 'float32' : 'bfloat16',
    },
    memory: {
      weightBytes: plan.weightBytes,
      kvBytesPerToken: perToken,
      kvTokens: limits.kvSlots,
      kvBytes: perToken * limits.kvSlots,
      arenaBytes: arena.bytes,
      arenaUnsharedBytes: arena.unsharedBytes,
    },
    limits: {
      contextLength: limits.contextLength,
      tokensPerStep: limits.tokens,
      sequences: limits.sequences,
      pageSize: limits.pageSize,
    },
    operations: describeOperations(program),
    programText: printProgram(program),
  }
}
