// Dense products on a GPU: a few bf16 rows by warps that each read two rows of the matrix (gemv.cu), more by cuBLASLt. Where the line lies
// depends on the matrix (H200, docs/performance-cuda.md).
import { alignUp } from '../../memory.js'
import type { Kernel, Ops } from '../../ops.js'
import type { CudaKernels } from '../kernels.js'
import { bindGemv, GEMV_ROWS, refusesGemv } from './gemv.js'
import { ceilDiv, field, kernelOf, matrixAddress, vectorAddress } from './operands.js'

/**
 * Up to this many rows are taken by warps. Small matrices cost a launch whoever multiplies; of others the library's tiles read as
 * fast from three rows on, with less work for each row. Pure.
 */
export const gemvRowsOf = (n: number, k: number): number => (n * k <= 1 << 20 ? 32 : 2)

const BIAS_ROWS = 32
const BIAS_THREADS = 256

/** @returns undefined where operands are not of one type, or rows not where wide loads can read them */
export function fastLinear(d: CudaKernels, a: Parameters<Ops['linear']>[0]): Kernel | undefined {
  const { out, x, weight, bias, accumulate = false } = a
  const { n, k } = weight
  const [o, i] = [field(d, out, n), field(d, x, k)]
  if (i.type !== weight.kind || (o.type === 'bf16' && i.type !== 'bf16')) return undefined
  // The library asks for 16-byte rows of bf16 to use tensor cores at all; other shapes are small tests.
  if (i.address % 16 !== 0 || o.address % 16 !== 0 || alignUp(k * i.bytes, 16) !== k * i.bytes) return undefined
  if ((i.stride * i.bytes) % 16 !== 0 || (o.stride * o.bytes) % 16 !== 0) return undefined
  const biasAt = vectorAddress(d, bias, n)
  const library = d.blas.bind({
    ...{ n, k, accumulate },
    x: { address: i.address, dtype: i.type, stride: i.stride },
    weight: { address: matrixAddress(d, weight), dtype: weight.kind, stride: k },
    out: { address: o.address, dtype: o.type, stride: o.stride },
  })
  const add = bias
    ? d
        .kernel('bias.cu', `add_bias_${o.type}`)
        .bind(['u64', 'u64', 'u64', 'i32', 'i32'], [o.address, o.stride, biasAt, 0, n], { programmatic: true })
    : undefined
  const spec = {
    weight,
    accumulate,
    x: { address: i.address, stride: i.stride },
    out: { address: o.address, stride: o.stride, dtype: o.type },
    bias: biasAt,
  }
  const gemv = refusesGemv(spec) === undefined ? bindGemv(d, spec) : undefined
  const most = gemvRowsOf(n, k)
  return kernelOf([o, i], rows => {
    if (gemv && rows <= most) return gemv(rows)
    library(rows)
    if (!add) return
    add.set(3, rows)
    add.launch([ceilDiv(n, BIAS_THREADS), ceilDiv(rows, BIAS_ROWS), 1], BIAS_THREADS)
  })
}

/** One matrix a head: few rows as above, more by one call of the library. @returns undefined as fastLinear does */
export function fastHeadLinear(d: CudaKernels, a: Parameters<Ops['headLinear']>[0]): Kernel | undefined {
  const { out, outHeadStride, x, xHeadStride, weight } = a
  const { n, k, count, strideBytes } = weight
  const o = field(d, out, (count - 1) * outHeadStride + n)
  const i = field(d, x, (count - 1) * xHeadStride + k)
  if (i.type !== 'bf16' || weight.kind !== 'bf16') return undefined
  const strides = [[i, xHeadStride] as const, [o, outHeadStride] as const]
  const aligned = strides.every(
    ([f, between]) => f.address % 16 === 0 && (f.stride * f.bytes) % 16 === 0 && (between * f.bytes) % 16 === 0,
  )
  const spec = {
    weight,
    x: { address: i.address, stride: i.stride, headStride: xHeadStride },
    out: { address: o.address, stride: o.stride, headStride: outHeadStride, dtype: o.type },
  }
  if (!aligned || refusesGemv(spec) !== undefined) return undefined
  const gemv = bindGemv(d, spec)
  const library = d.blas.bind({
    ...{ n, k },
    x: { address: i.address, dtype: 'bf16', stride: i.stride },
    weight: { address: matrixAddress(d, weight), dtype: 'bf16', stride: k },
    out: { address: o.address, dtype: o.type, stride: o.stride },
    batch: { count, x: xHeadStride, weight: strideBytes / 2, out: outHeadStride },
  })
  return kernelOf([o, i], rows => (rows <= GEMV_ROWS ? gemv(rows) : library(rows)))
}
