// Dense products on a GPU: up to four bf16 rows by warps that each read two rows of the matrix (gemv.cu), a few more of small matrices
// by a stream of boxes (gemm_skinny_sm90.cu), everything else by cuBLASLt.
import { alignUp } from '../../memory.js'
import type { Kernel, Ops } from '../../ops.js'
import type { CudaKernels } from '../kernels.js'
import { bindGemv, GEMV_ROWS, refusesGemv } from './gemv.js'
import { ceilDiv, field, kernelOf, matrixAddress, vectorAddress } from './operands.js'
import { bindSkinny, refusesSkinny, type SkinnySpec } from './skinny.js'

/** Where streaming is faster than the library's tiles: few rows of small matrices (H200, docs/performance-cuda.md). */
const STREAMED_ROWS = 8
const STREAMED_ELEMENTS = 1 << 20
/** Of larger matrices only so many rows: there the library reads as fast as the memory gives, and multiplies with less work. */
const GEMV_ELEMENTS = 1 << 26
const GEMV_ROWS_OF_LARGE = 2
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
  const spec: SkinnySpec = {
    weight,
    gated: false,
    accumulate,
    groups: { mode: 'dense' },
    x: { address: i.address, stride: i.stride },
    out: { address: o.address, stride: o.stride, dtype: o.type },
    bias: biasAt,
  }
  const streams = n * k <= STREAMED_ELEMENTS && d.properties.capability >= 90 && refusesSkinny(spec) === undefined
  const streamed = streams ? bindSkinny(d, spec, STREAMED_ROWS) : undefined
  const gemv = refusesGemv(spec) === undefined ? bindGemv(d, spec) : undefined
  const gemvRows = n * k <= GEMV_ELEMENTS ? GEMV_ROWS : GEMV_ROWS_OF_LARGE
  return kernelOf([o, i], rows => {
    if (gemv && rows <= gemvRows) return gemv(rows)
    if (streamed && rows <= STREAMED_ROWS) return streamed(rows)
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
