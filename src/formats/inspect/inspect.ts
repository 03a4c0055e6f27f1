// What `switchyard inspect DIR` shows: a checkpoint described from its headers and JSON files, as plain data. No weight is read.
// Invariant: numbers count what the files hold; a directory without weights (for dummy loading) is described as far as it goes.
import { type GenerationDefaults, readModelSpec } from '../hf/index.js'
import type { AttentionSpec, ModelSpec, MoeFfnSpec } from '../model-spec.js'
import { type Checkpoint, CheckpointError, elementCount, openCheckpoint } from '../safetensors/index.js'
import { loadTokenizer } from '../tokenizer/index.js'

export interface CheckpointReport {
  readonly dir: string
  readonly architecture: string
  readonly dtype: ModelSpec['dtype']
  readonly hiddenSize: number
  readonly vocabSize: number
  readonly maxPositions: number
  readonly tieWordEmbeddings: boolean
  readonly layers: { readonly total: number; readonly dense: number; readonly moe: number; readonly nextn: number }
  readonly attention: AttentionReport
  /** null for a model without experts. */
  readonly experts: ExpertReport | null
  /** Bytes of the cache a token takes on one rank that holds all heads, in f32. */
  readonly kvBytesPerToken: number
  /** null without weights in the directory. */
  readonly weights: WeightReport | null
  readonly tokenizer: {
    readonly vocabSize: number
    readonly bosToken: string | null
    readonly eosToken: string | null
    readonly chatTemplate: boolean
  } | null
  readonly eosTokenIds: readonly number[]
  readonly bosTokenId: number | null
  readonly generation: GenerationDefaults
}

export interface AttentionReport {
  readonly kind: AttentionSpec['kind']
  readonly heads: number
  readonly kvHeads: number
  /** f32 values cached for a position in one layer: MLA the latent and the rotated key, GQA keys and values. */
  readonly cachedValues: number
  /** Layers with a sliding window, and its length. */
  readonly windowLayers: number
  readonly window: number | null
}

export interface ExpertReport {
  /** Routed experts of a layer. */
  readonly routed: number
  readonly perToken: number
  readonly groups: number
  readonly topGroups: number
  readonly scoring: MoeFfnSpec['router']['scoring']
  readonly intermediate: number
  /** Width of the shared experts together, or null. */
  readonly sharedIntermediate: number | null
  /** Bytes of one expert of one layer in the files, block scales included; null without weights. */
  readonly bytesEach: number | null
}

export interface WeightReport {
  readonly files: number
  readonly tensors: number
  readonly bytes: number
  readonly bytesByDtype: Readonly<Record<string, number>>
  readonly parameters: {
    /** Without block scales and without next-token-prediction layers. */
    readonly total: number
    /** Of those, what one token passes through: all but the routed experts that are not chosen. */
    readonly active: number
    readonly routedExperts: number
    readonly nextn: number
  }
}

/** @throws ModelConfigError, CheckpointError, TokenizerError */
export function inspectCheckpoint(dir: string, overrides?: Readonly<Record<string, unknown>>): CheckpointReport {
  const { spec, generation } = readModelSpec(dir, overrides)
  const checkpoint = openIfThere(dir)
  const tokenizer = loadTokenizer(dir)
  const moe = moeOf(spec)
  const moeLayers = spec.layers.filter(layer => layer.ffn.kind === 'moe').length
  return {
    dir,
    architecture: spec.architecture,
    dtype: spec.dtype,
    hiddenSize: spec.hiddenSize,
    vocabSize: spec.vocabSize,
    maxPositions: spec.maxPositions,
    tieWordEmbeddings: spec.tieWordEmbeddings,
    layers: {
      total: spec.layers.length,
      dense: spec.layers.length - moeLayers,
      moe: moeLayers,
      nextn: spec.nextnLayers,
    },
    attention: describeAttention(spec),
    experts: moe && describeExperts(moe, moeLayers, checkpoint, spec),
    kvBytesPerToken: spec.layers.reduce((sum, layer) => sum + 4 * cachedValues(layer.attention), 0),
    weights: checkpoint && describeWeights(checkpoint, spec, moe),
    tokenizer: tokenizer && {
      vocabSize: tokenizer.vocabSize,
      bosToken: tokenizer.bosToken,
      eosToken: tokenizer.eosToken,
      chatTemplate: tokenizer.hasChatTemplate,
    },
    eosTokenIds: spec.eosTokenIds,
    bosTokenId: spec.bosTokenId,
    generation,
  }
}

function openIfThere(dir: string): Checkpoint | null {
  try {
    return openCheckpoint(dir)
  } catch (error) {
    if (error instanceof CheckpointError && error.code === 'SY_CHECKPOINT_NOT_FOUND') return null
    throw error
  }
}

function moeOf(spec: ModelSpec): MoeFfnSpec | null {
  for (const { ffn } of spec.layers) if (ffn.kind === 'moe') return ffn
  return null
}

/** f32 values cached for one position of one layer. */
export const cachedValues = (attention: AttentionSpec): number =>
  attention.kind === 'mla' ? attention.kvLoraRank + attention.rope.width : 2 * attention.kvHeads * attention.headDim

function describeAttention(spec: ModelSpec): AttentionReport {
  const { attention } = spec.layers[0]!
  const windows = spec.layers.flatMap(layer => (layer.attention.kind === 'gqa' ? (layer.attention.window ?? []) : []))
  return {
    kind: attention.kind,
    heads: attention.heads,
    kvHeads: attention.kind === 'gqa' ? attention.kvHeads : 1,
    cachedValues: cachedValues(attention),
    windowLayers: windows.length,
    window: windows[0] ?? null,
  }
}

/** Tensors of routed experts, of the layers that count. */
const isRouted = (name: string): boolean => /\.experts\./.test(name)

function isNextn(name: string, spec: ModelSpec): boolean {
  const layer = /^model\.layers\.(\d+)\./.exec(name)
  return layer !== null && Number(layer[1]) >= spec.layers.length
}

function describeExperts(
  moe: MoeFfnSpec,
  moeLayers: number,
  checkpoint: Checkpoint | null,
  spec: ModelSpec,
): ExpertReport {
  let bytes = 0
  for (const [name, info] of checkpoint?.tensors ?? []) if (isRouted(name) && !isNextn(name, spec)) bytes += info.bytes
  return {
    routed: moe.router.experts,
    perToken: moe.router.topK,
    groups: moe.router.groups,
    topGroups: moe.router.topGroups,
    scoring: moe.router.scoring,
    intermediate: moe.intermediate,
    sharedIntermediate: moe.shared?.intermediate ?? null,
    bytesEach: checkpoint && Math.round(bytes / (moeLayers * moe.router.experts)),
  }
}

function describeWeights(checkpoint: Checkpoint, spec: ModelSpec, moe: MoeFfnSpec | null): WeightReport {
  const bytesByDtype: Record<string, number> = {}
  const files = new Set<string>()
  let bytes = 0
  let total = 0
  let routed = 0
  let nextn = 0
  for (const [name, info] of checkpoint.tensors) {
    files.add(info.file)
    bytes += info.bytes
    bytesByDtype[info.dtype] = (bytesByDtype[info.dtype] ?? 0) + info.bytes
    if (name.endsWith('_scale_inv')) continue
    const parameters = elementCount(info.shape)
    if (isNextn(name, spec)) nextn += parameters
    else {
      total += parameters
      if (isRouted(name)) routed += parameters
    }
  }
  const idle = moe ? routed * (1 - moe.router.topK / moe.router.experts) : 0
  return {
    files: files.size,
    tensors: checkpoint.tensors.size,
    bytes,
    bytesByDtype,
    parameters: { total, active: Math.round(total - idle), routedExperts: routed, nextn },
  }
}
