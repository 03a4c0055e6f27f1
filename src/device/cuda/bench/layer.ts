// The products of a decode step's layers one after another, as the engine queues them: qkv, o, norm, the router's logits, choice, experts,
// norm. No attention. Shows what launches that overlap are worth.
import type { Operand, ParameterVector } from '../../ops.js'
import { cudaOps } from '../cuda-ops.js'
import { type BenchDevice, figure, type KernelBench, type KernelFigure } from './bench.js'

const [HIDDEN, QKV, ATTENTION, INTER, EXPERTS, TOP_K] = [2048, 5120, 4096, 768, 128, 8]
const LAYERS = 8

function* layers(b: BenchDevice): Iterable<KernelFigure> {
  const act = (rows: number, width: number): Operand => ({
    ...{ span: b.random(rows * width), dtype: 'bf16', offset: 0, stride: width },
  })
  const word = (rows: number, width: number): Operand => ({
    ...{ span: b.lend(rows * width * 4), offset: 0, stride: width },
  })
  for (const rows of [1, 2, 4, 8, 32]) {
    const filled = (count: number, value: number) => {
      const span = b.lend(count * 4)
      b.context.upload(b.kernels.addressOf(span), new Float32Array(count).fill(value))
      return span
    }
    const weight: ParameterVector = { length: HIDDEN, span: filled(HIDDEN, 1) }
    const made = Array.from({ length: LAYERS }, () => ({
      qkv: b.matrix(QKV, HIDDEN, 1),
      o: b.matrix(HIDDEN, ATTENTION, 1),
      router: b.matrix(EXPERTS, HIDDEN, 1),
      gateUp: b.matrix(2 * INTER, HIDDEN, EXPERTS),
      down: b.matrix(HIDDEN, INTER, EXPERTS),
    }))
    const [x, qkv, attention, moved] = [act(rows, HIDDEN), act(rows, QKV), act(rows, ATTENTION), act(rows, HIDDEN)]
    const residual: Operand = { span: filled(rows * HIDDEN, 0), offset: 0, stride: HIDDEN }
    const [logits, ids, weights] = [word(rows, EXPERTS), word(rows, TOP_K), word(rows, TOP_K)]
    const scratch = act(rows, TOP_K * (3 * INTER + HIDDEN) + 4096)
    const touched = EXPERTS * (1 - (1 - TOP_K / EXPERTS) ** rows)
    const bytes = 2 * HIDDEN * (QKV + ATTENTION + EXPERTS + touched * 3 * INTER)
    const flop = 2 * rows * HIDDEN * (QKV + ATTENTION + EXPERTS + TOP_K * 3 * INTER)
    const ops = cudaOps(b.kernels)
    const norm = ops.addRmsNorm({ out: x, residual, x: moved, weight, width: HIDDEN, eps: 1e-6 })
    const queues = made.map(layer => {
      const kernels = [
        ops.linear({ out: qkv, x, weight: layer.qkv }),
        ops.linear({ out: moved, x: attention, weight: layer.o }),
        norm,
        ops.linear({ out: logits, x, weight: layer.router }),
        ops.router({
          ...{ ids, weights, logits },
          spec: {
            ...{ experts: EXPERTS, topK: TOP_K, scoring: 'softmax', groups: 1, topGroups: 1 },
            ...{ groupScore: 'max', normalize: true, scale: 1 },
          },
        }),
        ops.experts({
          ...{ out: moved, x, ids, weights, topK: TOP_K, scratch },
          ...{ gateUp: layer.gateUp, down: layer.down, activation: { kind: 'silu' } },
        }),
        norm,
      ]
      return () => {
        for (const kernel of kernels) kernel(rows)
      }
    })
    yield figure(
      'layer without attention',
      `${rows} rows, ${touched.toFixed(1)} experts`,
      b.timeInGraph(queues),
      { bytes, flop },
      null,
    )
    b.release()
  }
}

export const layerBenches: readonly KernelBench[] = [{ name: 'layer', run: layers }]
