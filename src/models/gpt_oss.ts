// gpt-oss: attention with sinks and alternating windows, biases everywhere, experts stacked in one tensor a layer with
// gate and up interleaved, stored [input, output]. MXFP4 checkpoints are refused by the config reader.
import type { ExpertPieces, ExpertWidth } from '../layers/index.js'
import { type Architecture, commonLayerNames, commonNames, skipCommon } from './architecture.js'

const stackedExperts =
  (prefix: string) =>
  (slice: number, { experts, hidden, total, from, count }: ExpertWidth): ExpertPieces => {
    const half = (parity: 0 | 1) => ({ from: 2 * from + parity, count, step: 2 })
    const gateUpShape = [experts, hidden, 2 * total]
    const biasShape = [experts, 2 * total]
    return {
      gateUp: ([0, 1] as const).map(parity => ({
        tensor: `${prefix}.gate_up_proj`,
        shape: gateUpShape,
        slice,
        transposed: true,
        rows: half(parity),
      })),
      down: [
        {
          tensor: `${prefix}.down_proj`,
          shape: [experts, total, hidden],
          slice,
          transposed: true,
          rows: { from: 0, count: hidden },
          columns: { from, count },
        },
      ],
      gateUpBias: ([0, 1] as const).map(parity => ({
        tensor: `${prefix}.gate_up_proj_bias`,
        shape: biasShape,
        slice,
        rows: half(parity),
      })),
      downBias: [
        { tensor: `${prefix}.down_proj_bias`, shape: [experts, hidden], slice, rows: { from: 0, count: hidden } },
      ],
    }
  }

export const gptOss: Architecture = {
  ...commonNames,
  skip: skipCommon,
  layer: layer => {
    const names = commonLayerNames(layer)
    const p = `model.layers.${layer}.mlp`
    return { ...names, moe: { ...names.moe, router: `${p}.router`, expert: stackedExperts(`${p}.experts`) } }
  },
}
