// Gated MLPs that every token visits: dense feed-forward layers and shared experts.
import type { DenseFfnSpec } from '../formats/model-spec.js'
import type { Ref, RowSymbol } from '../program/index.js'
import { cut, elementsOf, joined, type LayerContext, rowsOf, type Shard, stacked, WHOLE } from './context.js'

export interface MlpNames {
  readonly gate: string
  readonly up: string
  readonly down: string
}

export interface MlpOptions {
  /** Prefix of the buffers and weights. */
  readonly name: string
  /** Cut of the intermediate width. */
  readonly shard?: Shard
  /** Rows of x and of the output. */
  readonly rows: RowSymbol
  /** Adds to `out` instead of writing it. */
  readonly addTo?: Ref
}

/** out (+)= down(act(gate(x), up(x))), [rows, hidden]; a partial sum over the shards. */
export function gatedMlp(ctx: LayerContext, spec: DenseFfnSpec, names: MlpNames, x: Ref, options: MlpOptions): Ref {
  const { builder: b, layer, hidden } = ctx
  const { rows } = options
  const shard = options.shard ?? WHOLE
  const { from, count: width } = cut(spec.intermediate, shard)
  const prefix = `${layer}.${options.name}`
  const shape = [spec.intermediate, hidden] as const

  const both = b.arena(`${options.name}.gate_up`, 2 * width, rows)
  const gateUp = b.matrix(
    stacked(`${prefix}.gate_up`, hidden, [
      rowsOf(`${names.gate}.weight`, shape, from, width),
      rowsOf(`${names.up}.weight`, shape, from, width),
    ]),
  )
  const gateUpBias = spec.bias
    ? {
        bias: b.vector(
          joined(`${prefix}.gate_up_bias`, [
            elementsOf(`${names.gate}.bias`, spec.intermediate, from, width),
            elementsOf(`${names.up}.bias`, spec.intermediate, from, width),
          ]),
        ),
      }
    : {}
  b.emit('linear', { out: both, x, weight: gateUp, ...gateUpBias }, { rows, label: `${options.name}: gate and up` })

  const inner = b.arena(`${options.name}.inner`, width, rows)
  b.emit(
    'gated_activation',
    { out: inner, x: both, width, activation: spec.activation },
    { rows, label: `${options.name}: activation` },
  )

  const out = options.addTo ?? b.arena(`${options.name}.out`, hidden, rows)
  const piece = { ...rowsOf(`${names.down}.weight`, [hidden, spec.intermediate]), columns: { from, count: width } }
  const down = b.matrix(stacked(`${prefix}.down`, width, [piece]))
  const downBias =
    spec.bias && shard.index === 0
      ? { bias: b.vector(joined(`${prefix}.down_bias`, [elementsOf(`${names.down}.bias`, hidden)])) }
      : {}
  const accumulate = options.addTo ? { accumulate: true } : {}
  b.emit(
    'linear',
    { out, x: inner, weight: down, ...downBias, ...accumulate },
    { rows, label: `${options.name}: down` },
  )
  return out
}
