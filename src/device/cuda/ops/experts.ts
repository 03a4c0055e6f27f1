// Plain routed experts: gate and up, activation, down and the weighted sum as four kernels over (token, slot) rows. The slow
// reference on the device, for shapes and types that no fast path takes.
import { Unreachable } from '../../../config/errors.js'
import type { Ops, PackedMatrix } from '../../ops.js'
import type { CudaKernels } from '../kernels.js'
import { faultAddress } from './faults.js'
import {
  ceilDiv,
  elementGrid,
  type Field,
  field,
  kernelOf,
  MOST_BLOCKS_Y,
  matrixAddress,
  matrixStride,
  rowsOfMatrix,
  vectorAddress,
  vectorWidth,
} from './operands.js'
import { bindGate } from './rows.js'

const WARPS = 8

export const expertOps = (d: CudaKernels): Pick<Ops, 'experts'> => ({
  experts({ out, x, ids, weights, topK, gateUp, down, gateUpBias, downBias, activation, scratch }) {
    const [hidden, inter] = [gateUp.k, down.k]
    const perToken = topK * (3 * inter + hidden)
    const [o, i] = [field(d, out, hidden), field(d, x, hidden)]
    const [chosen, w] = [field(d, ids, topK), field(d, weights, topK)]
    const s = field(d, { ...scratch, stride: perToken }, perToken)
    if (s.type !== o.type) throw new Unreachable('scratch of another type than the experts’ output')
    // Places depend on what the scratch holds, not on the rows of a step.
    const entries = s.capacity * topK
    const piece = (before: number, width: number): Field => ({
      ...s,
      address: s.address + entries * before * s.bytes,
      stride: width,
    })
    const [wide, inner, narrow] = [piece(0, 2 * inter), piece(2 * inter, inter), piece(3 * inter, hidden)]
    const product = (to: Field, from: Field, m: PackedMatrix, bias: number, shared: boolean) => {
      const { n, k, count } = m
      const v = vectorWidth([4, 1], k, [from, rowsOfMatrix(d, m)])
      const args = d
        .kernel('generic_gemm.cu', `expert_product_${from.type}_${m.kind}_${to.type}_${v}`)
        .bind(
          [
            ...(['u64', 'u64', 'u64', 'u64', 'u64', 'u64', 'i32', 'i32', 'i32', 'i32', 'i32', 'i32'] as const),
            ...(['u64', 'u64', 'u64', 'u64'] as const),
          ],
          [
            ...[to.address, from.address, matrixAddress(d, m), bias, chosen.address, faultAddress(d)],
            ...[0, topK, n, k, count, shared ? 1 : 0],
            ...[to.stride, from.stride, chosen.stride, matrixStride(m)],
          ],
        )
      return (rows: number) => {
        args.set(6, rows)
        args.launch([ceilDiv(n, WARPS), Math.min(rows * topK, MOST_BLOCKS_Y), 1], 32 * WARPS)
      }
    }
    const first = product(wide, i, gateUp, vectorAddress(d, gateUpBias, gateUp.count * 2 * inter), true)
    const gate = bindGate(d, inner, wide, inter, activation)
    const second = product(narrow, inner, down, vectorAddress(d, downBias, down.count * hidden), false)
    const v = vectorWidth([8, 1], hidden, [o, narrow])
    const { threads, grid } = elementGrid(hidden, v)
    const sum = d
      .kernel('weighted_sum.cu', `weighted_sum_${o.type}_${v}`)
      .bind(
        ['u64', 'u64', 'u64', 'u64', 'u64', 'i32', 'i32', 'i32', 'u64', 'u64', 'u64', 'u64'],
        [
          ...[o.address, narrow.address, 0, chosen.address, w.address, 0, topK, hidden],
          ...[o.stride, hidden, chosen.stride, w.stride],
        ],
      )
    return kernelOf([o, i, chosen, w, s], rows => {
      first(rows)
      gate(rows * topK)
      second(rows)
      sum.set(5, rows)
      sum.launch(grid(rows), threads)
    })
  },
})
