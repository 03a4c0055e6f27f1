// Norms: a block a row, or a warp a head where a row has several. Which one depends on the widths alone.
import type { Ops } from '../../ops.js'
import type { CudaKernels } from '../kernels.js'
import { ceilDiv, type Field, field, kernelOf, parameterField, vectorAddress, vectorWidth } from './operands.js'

const FILE = 'norm.cu'
/** Heads are normalised by a warp up to this width. */
const WIDEST_WARP = 1024
const WARPS = 4

/** Threads of a block that share a row of `width` elements, `v` at once. */
const rowThreads = (width: number, v: number): number => Math.min(256, ceilDiv(ceilDiv(width, v), 32) * 32)

export const normOps = (d: CudaKernels): Pick<Ops, 'rmsNorm' | 'addRmsNorm'> => ({
  rmsNorm({ out, x, weight, width, groups, eps }) {
    const [o, i] = [field(d, out, width * groups), field(d, x, width * groups)]
    const w = vectorAddress(d, weight, width)
    const byWarp = groups > 1 && width <= WIDEST_WARP
    // A head of 128 keeps all lanes busy with 4 elements each.
    const choices = byWarp && width < 256 ? ([4, 1] as const) : ([8, 4, 1] as const)
    const v = vectorWidth(choices, width, [o, i, parameterField(w)])
    const kernel = d.kernel(FILE, `rms_norm_${byWarp ? 'warp' : 'block'}_${i.type}_${o.type}_${v}`)
    const args = kernel.bind(
      ['u64', 'u64', 'u64', 'i32', 'i32', 'i32', 'f32', 'u64', 'u64'],
      [o.address, i.address, w, 0, width, groups, eps, o.stride, i.stride],
      { programmatic: true },
    )
    const threads = byWarp ? 32 * WARPS : rowThreads(width, v)
    return kernelOf([o, i], rows => {
      args.set(3, rows)
      args.launch([byWarp ? ceilDiv(rows * groups, WARPS) : rows * groups, 1, 1], threads)
    })
  },

  addRmsNorm({ out, residual, x, weight, width, eps }) {
    const [o, s, i]: Field[] = [field(d, out, width), field(d, residual, width), field(d, x, width)] as const
    const w = vectorAddress(d, weight, width)
    const v = vectorWidth([8, 4, 1], width, [o!, s!, i!, parameterField(w)])
    const args = d
      .kernel(FILE, `add_rms_norm_${i!.type}_${o!.type}_${v}`)
      .bind(
        ['u64', 'u64', 'u64', 'u64', 'i32', 'i32', 'f32', 'u64', 'u64', 'u64'],
        [o!.address, s!.address, i!.address, w, 0, width, eps, o!.stride, s!.stride, i!.stride],
        { programmatic: true },
      )
    return kernelOf([o!, s!, i!], rows => {
      args.set(4, rows)
      args.launch([rows, 1, 1], rowThreads(width, v))
    })
  },
})
