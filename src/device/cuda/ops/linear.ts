// Plain matrix products: the slow reference on the device, for shapes and types that no fast path takes.
import type { Operand, Ops, PackedMatrix, ParameterVector } from '../../ops.js'
import type { CudaKernels } from '../kernels.js'
import {
  ceilDiv,
  field,
  kernelOf,
  MOST_BLOCKS_Y,
  matrixAddress,
  matrixStride,
  rowsOfMatrix,
  vectorAddress,
  vectorWidth,
} from './operands.js'

const WARPS = 8

interface Product {
  readonly out: Operand
  readonly outHeadStride: number
  readonly x: Operand
  readonly xHeadStride: number
  readonly weight: PackedMatrix
  readonly heads: number
  readonly bias: ParameterVector | undefined
  readonly accumulate: boolean
}

function bindProduct(d: CudaKernels, a: Product) {
  const { n, k } = a.weight
  const o = field(d, a.out, (a.heads - 1) * a.outHeadStride + n)
  const i = field(d, a.x, (a.heads - 1) * a.xHeadStride + k)
  const heads = { ...i, stride: a.xHeadStride }
  const v = vectorWidth([4, 1], k, [i, heads, rowsOfMatrix(d, a.weight)])
  const args = d
    .kernel('generic_gemm.cu', `product_${i.type}_${a.weight.kind}_${o.type}_${v}`)
    .bind(
      ['u64', 'u64', 'u64', 'u64', 'i32', 'i32', 'i32', 'i32', 'u64', 'u64', 'u64', 'u64', 'u64'],
      [
        ...[o.address, i.address, matrixAddress(d, a.weight), vectorAddress(d, a.bias, n)],
        ...[0, n, k, a.accumulate ? 1 : 0],
        ...[o.stride, i.stride, a.outHeadStride, a.xHeadStride, matrixStride(a.weight)],
      ],
    )
  return kernelOf([o, i], rows => {
    args.set(4, rows)
    args.launch([ceilDiv(n, WARPS), Math.min(rows, MOST_BLOCKS_Y), a.heads], 32 * WARPS)
  })
}

export const linearOps = (d: CudaKernels): Pick<Ops, 'linear' | 'headLinear'> => ({
  linear: ({ out, x, weight, bias, accumulate }) =>
    bindProduct(d, {
      out,
      x,
      weight,
      bias,
      accumulate: accumulate ?? false,
      heads: 1,
      outHeadStride: 0,
      xHeadStride: 0,
    }),

  headLinear: ({ out, outHeadStride, x, xHeadStride, weight }) =>
    bindProduct(d, {
      out,
      outHeadStride,
      x,
      xHeadStride,
      weight,
      heads: weight.count,
      bias: undefined,
      accumulate: false,
    }),
})
