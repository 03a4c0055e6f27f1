// What `switchyard explain` says about a model and its flags before anything is allocated: plain data.

import { type EpBytes, expertBufferBytes } from '../comm/index.js'
import type { EngineFlags } from '../config/flags.js'
import { elementBytes } from '../device/ops.js'
import { packedBytesOf } from '../formats/loader/index.js'
import { groupOf, type ParallelSizes, type RankCoordinates } from '../parallel/index.js'
import { describeOperations, type Operation, type PrintedOperation, planArena, printProgram } from '../program/index.js'
import { type ModelPlan, planModel } from './load-model.js'
import { openDevice } from './open-device.js'
import { kvBytesPerToken } from './sizing.js'

export interface ExplainedRank extends RankCoordinates {
  readonly groups: {
    readonly attnTp: readonly number[]
    readonly attnDp: readonly number[]
    readonly moeEp: readonly number[]
    readonly moeTp: readonly number[]
  }
  /** Logical experts of the first MoE layer in this rank's slots, in order of slots. */
  readonly experts: readonly number[]
  /** Bytes of the weights this rank reads; shards are shared by ranks that hold the same. */
  readonly weightBytes: number
  readonly kvBytesPerToken: number
  readonly kvTokens: number
}

/** The KV cache under another split of attention over the same ranks. */
export interface KvChoice {
  readonly attnDp: number
  readonly attnTp: number
  readonly bytesPerTokenPerRank: number
  /** Tokens all ranks hold together when each has the KV memory it has now. */
  readonly tokensInAll: number
  /** How often a token's cache is stored over the ranks. */
  readonly copies: number
}

export interface ExplainedCollective {
  readonly operation: number
  readonly layer: number
  readonly kind: string
  readonly group: string
  readonly label: string
  readonly why: string
}

export interface ExplainReport {
  readonly model: {
    readonly name: string
    readonly architecture: string
    readonly layers: number
    readonly dtype: string
  }
  readonly parallel: ParallelSizes & { readonly notes: readonly string[] }
  readonly ranks: readonly ExplainedRank[]
  readonly memory: {
    /** All distinct shards of the node. */
    readonly weightBytes: number
    readonly kvBytesPerToken: number
    readonly kvTokens: number
    /** Of one rank. */
    readonly kvBytes: number
    readonly arenaBytes: number
    readonly arenaUnsharedBytes: number
  }
  readonly kvChoices: readonly KvChoice[]
  readonly limits: {
    readonly contextLength: number
    readonly tokensPerStep: number
    readonly sequences: number
    readonly pageSize: number
  }
  /** Memory of the all-to-all of one rank, part by part; empty without one. */
  readonly expertBuffer: readonly EpBytes[]
  readonly collectives: readonly ExplainedCollective[]
  readonly operations: readonly PrintedOperation[]
  /** The program as text, equal layers folded. */
  readonly programText: readonly string[]
}

/** @param flags checked flags; nothing is loaded */
export function explainModel(flags: EngineFlags): ExplainReport {
  const device = openDevice(flags)
  const plan = planModel(flags, device)
  const { program } = plan.programs[0]!.at(-1)!
  const arena = planArena(program, plan.activation)
  const { sizes } = plan.topology
  const perToken = kvBytesPerToken(plan.spec, sizes.attnTp, elementBytes(plan.activation))
  const { limits } = plan
  // A stack of experts is shared by the node; a rank reads only those it holds.
  const slots = plan.placement ? plan.placement.physical / sizes.ep : 0
  const bytesOf = (rank: number) =>
    plan.programs[rank]![0]!.weights.weights.reduce((sum, w) => {
      const whole = packedBytesOf(w, plan.dtype, device.packer)
      const stack = w.form === 'matrix' && w.name.includes('.moe.') && w.pieces.length === plan.placement?.logical
      return sum + (stack ? whole * Math.min(1, slots / w.pieces.length) : whole)
    }, 0)
  return {
    model: {
      name: plan.name,
      architecture: plan.spec.architecture,
      layers: plan.spec.layers.length,
      dtype: plan.dtype === 'f32' ? 'float32' : 'bfloat16',
    },
    parallel: { ...sizes, notes: plan.parallel.notes },
    ranks: plan.topology.ranks.map(rank => ({
      ...rank,
      groups: {
        attnTp: groupOf(plan.topology, 'attnTp', rank.rank),
        attnDp: groupOf(plan.topology, 'attnDp', rank.rank),
        moeEp: groupOf(plan.topology, 'moeEp', rank.rank),
        moeTp: groupOf(plan.topology, 'moeTp', rank.rank),
      },
      experts: expertsOf(plan, rank),
      weightBytes: bytesOf(rank.rank),
      kvBytesPerToken: perToken,
      kvTokens: limits.kvSlots,
    })),
    memory: {
      weightBytes: plan.weightBytes,
      kvBytesPerToken: perToken,
      kvTokens: limits.kvSlots,
      kvBytes: perToken * limits.kvSlots,
      arenaBytes: arena.bytes,
      arenaUnsharedBytes: arena.unsharedBytes,
    },
    kvChoices: kvChoices(plan, perToken * limits.kvSlots),
    limits: {
      contextLength: limits.contextLength,
      tokensPerStep: limits.tokens,
      sequences: limits.sequences,
      pageSize: limits.pageSize,
    },
    expertBuffer: plan.expertBuffer ? expertBufferBytes(plan.expertBuffer, 0) : [],
    collectives: program.operations.flatMap((op, operation) => explainCollective(op, operation)),
    operations: describeOperations(program),
    programText: printProgram(program),
  }
}

function expertsOf({ placement, spec }: ModelPlan, { ep }: RankCoordinates): number[] {
  const layer = spec.layers.findIndex(l => l.ffn.kind === 'moe')
  if (!placement || layer < 0) return []
  const before = placement.cluster.slotsPerGpu.slice(0, ep).reduce((a, b) => a + b, 0)
  const at = layer * placement.physical + before
  return [...placement.physicalToLogical.subarray(at, at + placement.cluster.slotsPerGpu[ep]!)]
}

/** Every split of the ranks into attention-DP x attention-TP that the model's heads allow. */
function kvChoices({ topology, spec, activation }: ModelPlan, bytesPerRank: number): KvChoice[] {
  const { tp } = topology.sizes
  const heads = spec.layers[0]!.attention.heads
  const splits = Array.from({ length: tp }, (_, i) => i + 1).filter(dp => tp % dp === 0 && heads % (tp / dp) === 0)
  const whole = kvBytesPerToken(spec, 1, elementBytes(activation))
  return splits.map(attnDp => {
    const attnTp = tp / attnDp
    const bytes = kvBytesPerToken(spec, attnTp, elementBytes(activation))
    const tokens = Math.floor(bytesPerRank / bytes)
    return {
      attnDp,
      attnTp,
      bytesPerTokenPerRank: bytes,
      tokensInAll: tokens * attnDp,
      copies: (bytes * attnTp) / whole,
    }
  })
}

const WHY: Partial<Record<Operation['kind'], Record<string, string>>> = {
  all_gather: {
    attnDp: 'the next stage is cut over all ranks, so each needs the rows of every attention-DP rank',
    attnTp: 'rows were cut over attention-TP; the next stage needs them whole',
  },
  all_reduce: {
    attnTp: 'each member of the attention-TP group added only its own heads',
    tp: 'each rank holds only a part of the sum',
  },
  reduce_scatter: {
    tp: 'each rank added only its experts (or its cut of the layer); the sum of the own rows comes home',
    attnTp: 'each member added only its own heads; each keeps a slice of the rows',
  },
  reduce_norm: {
    tp: 'each rank added only its part; the sum of the own rows goes straight into the residual and the norm',
    attnTp: 'each member added only its own heads; the sum goes straight into the residual and the norm',
  },
  gather_columns: {
    tp: 'the vocabulary is cut over all ranks; a row is sampled where its request lives',
    attnTp: 'the vocabulary is cut over the attention-TP group',
  },
}

function explainCollective(op: Operation, operation: number): ExplainedCollective[] {
  const { kind, layer, label } = op
  switch (op.kind) {
    case 'all_gather':
    case 'all_reduce':
    case 'reduce_scatter':
    case 'reduce_norm':
    case 'gather_columns': {
      const { group } = op.args
      return [{ operation, layer, kind, group, label, why: WHY[kind]?.[group] ?? '' }]
    }
    case 'dispatch_send':
      return [
        { operation, layer, kind, group: 'moe_ep', label, why: 'rows go only to the ranks that hold their experts' },
      ]
    case 'combine_send':
      return [
        {
          operation,
          layer,
          kind,
          group: 'moe_ep',
          label,
          why: 'each rank added its experts; the sums go back to where the row lives',
        },
      ]
    default:
      return []
  }
}
