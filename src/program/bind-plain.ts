// Row operations that few models need, written plainly over host memory: clamping, and a norm over rows that are cut
// over attention-TP. They are on no hot path; a model that makes them hot gets kernels.
import { f32View } from '../device/memory.js'
import type { Kernel, Operand, ParameterVector } from '../device/ops.js'
import type { Operation, Ref } from './operation.js'

type PlainOperation = Extract<Operation, { kind: 'clamp' | 'square_sum' | 'rms_scale' }>

export function bindPlainRows(
  op: PlainOperation,
  at: (ref: Ref) => Operand,
  vector: (name: string) => ParameterVector,
): Kernel {
  const [x, width] = [at(op.args.x), op.args.x.width]
  const from = f32View(x.span)
  switch (op.kind) {
    case 'clamp': {
      const { limit } = op.args
      return rows => {
        for (let r = 0; r < rows; r++) {
          const start = x.offset + r * x.stride
          for (let i = start; i < start + width; i++) from[i] = Math.min(Math.max(from[i]!, -limit), limit)
        }
      }
    }
    case 'square_sum': {
      const out = at(op.args.out)
      const to = f32View(out.span)
      return rows => {
        for (let r = 0; r < rows; r++) {
          const start = x.offset + r * x.stride
          let sum = 0
          for (let i = start; i < start + width; i++) sum += from[i]! * from[i]!
          to[out.offset + r * out.stride] = sum
        }
      }
    }
    case 'rms_scale': {
      const [out, sums] = [at(op.args.out), at(op.args.sums)]
      const [to, sumView, weight] = [f32View(out.span), f32View(sums.span), f32View(vector(op.args.weight).span)]
      const { total, eps } = op.args
      return rows => {
        for (let r = 0; r < rows; r++) {
          const scale = 1 / Math.sqrt(sumView[sums.offset + r * sums.stride]! / total + eps)
          const [source, target] = [x.offset + r * x.stride, out.offset + r * out.stride]
          for (let c = 0; c < width; c++) to[target + c] = from[source + c]! * scale * weight[c]!
        }
      }
    }
  }
}
