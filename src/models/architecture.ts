// What differs between architectures beyond their numbers: the names of their weights. One file an architecture.
import type { ModelSpec } from '../formats/model-spec.js'
import { type GqaNames, type MlaNames, type MlpNames, type MoeNames, separateExperts } from '../layers/index.js'

export interface LayerNames {
  readonly inputNorm: string
  readonly postAttentionNorm: string
  readonly attention: GqaNames | MlaNames
  readonly dense: MlpNames
  readonly moe: MoeNames
}

export interface Architecture {
  readonly embed: string
  readonly finalNorm: string
  readonly lmHead: string
  readonly layer: (layer: number) => LayerNames
  /** Tensors of a checkpoint that are known and left: next-token-prediction layers, stored rope tables. */
  readonly skip: (spec: ModelSpec, tensor: string) => boolean
}

/** Names that nearly all Hugging Face decoders share. */
export const commonNames = {
  embed: 'model.embed_tokens.weight',
  finalNorm: 'model.norm.weight',
  lmHead: 'lm_head.weight',
} as const

export const commonGqaNames = (layer: number): GqaNames => {
  const p = `model.layers.${layer}.self_attn`
  return {
    kind: 'gqa',
    q: `${p}.q_proj`,
    k: `${p}.k_proj`,
    v: `${p}.v_proj`,
    o: `${p}.o_proj`,
    qNorm: `${p}.q_norm`,
    kNorm: `${p}.k_norm`,
    sinks: `${p}.sinks`,
  }
}

export const commonMlpNames = (prefix: string): MlpNames => ({
  gate: `${prefix}.gate_proj`,
  up: `${prefix}.up_proj`,
  down: `${prefix}.down_proj`,
})

/** Names of a decoder layer as most Hugging Face MoE models have them; an architecture replaces what differs. */
export const commonLayerNames = (layer: number): LayerNames => {
  const p = `model.layers.${layer}`
  return {
    inputNorm: `${p}.input_layernorm.weight`,
    postAttentionNorm: `${p}.post_attention_layernorm.weight`,
    attention: commonGqaNames(layer),
    dense: commonMlpNames(`${p}.mlp`),
    moe: {
      router: `${p}.mlp.gate`,
      correctionBias: `${p}.mlp.gate.e_score_correction_bias`,
      expert: separateExperts(e => commonMlpNames(`${p}.mlp.experts.${e}`)),
      shared: commonMlpNames(`${p}.mlp.shared_expert`),
      sharedGate: `${p}.mlp.shared_expert_gate`,
    },
  }
}

/** Old checkpoints store the rope frequencies beside the weights. A tied output head may be stored too. */
export function skipCommon(spec: ModelSpec, tensor: string): boolean {
  if (tensor.endsWith('.rotary_emb.inv_freq')) return true
  if (spec.tieWordEmbeddings && tensor === commonNames.lmHead) return true
  const layer = /^model\.layers\.(\d+)\./.exec(tensor)
  if (layer === null) return false
  const index = Number(layer[1])
  return index >= spec.layers.length && index < spec.layers.length + spec.nextnLayers
}
