// Moves of rows and gates, element by element.
import { Unreachable } from '../../../config/errors.js'
import type { DeviceOps } from '../../device-ops.js'
import { elementBytes, type GatedActivation, type Operand, type Ops } from '../../ops.js'
import type { CudaKernels } from '../kernels.js'
import { faultAddress } from './faults.js'
import {
  bounded,
  elementGrid,
  type Field,
  field,
  kernelOf,
  matrixAddress,
  parameterField,
  typeOf,
  vectorWidth,
} from './operands.js'

const FILE = 'rows.cu'

/** Clamp limit and alpha as kernels take them. */
const gateArguments = (a: GatedActivation): [clamped: number, limit: number, alpha: number] =>
  a.kind === 'silu' ? [0, 0, 0] : [1, a.limit, a.alpha]

/** Binds act(gate, up) over rows that need not be those of a batch. */
export function bindGate(
  d: CudaKernels,
  o: Field,
  x: Field,
  width: number,
  activation: GatedActivation,
): (rows: number) => void {
  const half = { ...x, address: x.address + width * x.bytes }
  const v = vectorWidth([8, 1], width, [o, x, half])
  const { threads, grid } = elementGrid(width, v)
  const args = d
    .kernel(FILE, `gated_${x.type}_${o.type}_${v}`)
    .bind(
      ['u64', 'u64', 'i32', 'i32', 'i32', 'f32', 'f32', 'u64', 'u64'],
      [o.address, x.address, 0, width, ...gateArguments(activation), o.stride, x.stride],
      { programmatic: true },
    )
  return rows => {
    args.set(2, rows)
    args.launch(grid(rows), threads)
  }
}

type RowOps = Pick<Ops, 'embed' | 'add' | 'copy' | 'gatherRows' | 'storeKv' | 'gatedActivation' | 'sigmoidScale'> &
  Required<Pick<DeviceOps, 'clamp' | 'mapIds' | 'chooseReplicas'>>

export const rowOps = (d: CudaKernels): RowOps => ({
  embed({ out, ids, table }) {
    const { n: vocab, k: width } = table
    const [o, i] = [field(d, out, width), field(d, ids)]
    const address = matrixAddress(d, table)
    const rowsOfTable = { address, stride: width, bytes: elementBytes(table.kind) }
    const v = vectorWidth([8, 1], width, [o, rowsOfTable])
    const { threads, grid } = elementGrid(width, v)
    const args = d
      .kernel(FILE, `embed_${table.kind}_${o.type}_${v}`)
      .bind(
        ['u64', 'u64', 'u64', 'i32', 'i32', 'i32', 'u64', 'u64'],
        [o.address, i.address, address, 0, width, vocab, o.stride, i.stride],
        { programmatic: true },
      )
    return kernelOf([o, i], rows => {
      args.set(3, rows)
      args.launch(grid(rows), threads)
    })
  },

  add({ out, a, b, width }) {
    const [o, x, y] = [field(d, out, width), field(d, a, width), field(d, b, width)]
    if (o.type !== x.type || o.type !== y.type) throw new Unreachable('rows of different types are added')
    const v = vectorWidth([8, 1], width, [o, x, y])
    const { threads, grid } = elementGrid(width, v)
    const args = d
      .kernel(FILE, `add_${x.type}_${y.type}_${o.type}_${v}`)
      .bind(
        ['u64', 'u64', 'u64', 'i32', 'i32', 'u64', 'u64', 'u64'],
        [o.address, x.address, y.address, 0, width, o.stride, x.stride, y.stride],
        { programmatic: true },
      )
    return kernelOf([o, x, y], rows => {
      args.set(3, rows)
      args.launch(grid(rows), threads)
    })
  },

  copy: ({ out, x, width }) => bindGather(d, out, x, null, width),

  gatherRows: ({ out, x, index, width }) => bindGather(d, out, x, index, width),

  storeKv({ kv, x, slots, width }) {
    const [o, i, s] = [field(d, kv, width), field(d, x, width), field(d, slots)]
    const v = vectorWidth([8, 1], width, [o, i])
    const { threads, grid } = elementGrid(width, v)
    const args = d
      .kernel(FILE, `store_kv_${i.type}_${o.type}_${v}`)
      .bind(
        ['u64', 'u64', 'u64', 'u64', 'i32', 'i32', 'i32', 'u64', 'u64', 'u64'],
        [o.address, i.address, s.address, faultAddress(d), 0, width, bounded(o.capacity), o.stride, i.stride, s.stride],
        { programmatic: true },
      )
    return kernelOf([i, s], rows => {
      args.set(4, rows)
      args.launch(grid(rows), threads)
    })
  },

  gatedActivation({ out, x, width, activation }) {
    const [o, i] = [field(d, out, width), field(d, x, 2 * width)]
    return kernelOf([o, i], bindGate(d, o, i, width, activation))
  },

  sigmoidScale({ out, x, gate, width, accumulate }) {
    const [o, i, g] = [field(d, out, width), field(d, x, width), field(d, gate)]
    const v = vectorWidth([8, 1], width, [o, i])
    const { threads, grid } = elementGrid(width, v)
    const args = d
      .kernel(FILE, `sigmoid_scale_${i.type}_${o.type}_${v}`)
      .bind(
        ['u64', 'u64', 'u64', 'i32', 'i32', 'i32', 'u64', 'u64', 'u64'],
        [o.address, i.address, g.address, 0, width, accumulate ? 1 : 0, o.stride, i.stride, g.stride],
        { programmatic: true },
      )
    return kernelOf([o, i, g], rows => {
      args.set(3, rows)
      args.launch(grid(rows), threads)
    })
  },

  clamp({ x, width, limit }) {
    const i = field(d, x, width)
    const { threads, grid } = elementGrid(width, 1)
    const args = d
      .kernel(FILE, `clamp_${i.type}`)
      .bind(['u64', 'i32', 'i32', 'f32', 'u64'], [i.address, 0, width, limit, i.stride], { programmatic: true })
    return kernelOf([i], rows => {
      args.set(1, rows)
      args.launch(grid(rows), threads)
    })
  },

  mapIds({ out, ids, table, width }) {
    const [o, i] = [field(d, out, width), field(d, ids, width)]
    const { threads, grid } = elementGrid(width, 1)
    const args = d
      .kernel(FILE, 'map_ids')
      .bind(
        ['u64', 'u64', 'u64', 'u64', 'i32', 'i32', 'i32', 'u64', 'u64'],
        [o.address, i.address, d.addressOf(table), faultAddress(d), 0, width, table.byteLength / 4, o.stride, i.stride],
        { programmatic: true },
      )
    return kernelOf([o, i], rows => {
      args.set(4, rows)
      args.launch(grid(rows), threads)
    })
  },

  chooseReplicas({ out, ids, requestKeys, positions, table, columns, layer, width }) {
    const [o, i, k, p] = [field(d, out, width), field(d, ids, width), field(d, requestKeys), field(d, positions)]
    const { threads, grid } = elementGrid(width, 1)
    const experts = Math.floor(table.byteLength / 4 / columns)
    const args = d
      .kernel(FILE, 'choose_replicas')
      .bind(
        ['u64', 'u64', 'u64', 'u64', 'u64', 'u64', 'i32', 'i32', 'i32', 'i32', 'i32', 'u64', 'u64', 'u64', 'u64'],
        [
          ...[o.address, i.address, k.address, p.address, d.addressOf(table), faultAddress(d)],
          ...[0, width, experts, columns, layer],
          ...[o.stride, i.stride, k.stride, p.stride],
        ],
        { programmatic: true },
      )
    return kernelOf([o, i, k, p], rows => {
      args.set(6, rows)
      args.launch(grid(rows), threads)
    })
  },
})

function bindGather(d: CudaKernels, out: Operand, x: Operand, index: Operand | null, width: number) {
  const [o, i] = [field(d, out, width), field(d, x, width)]
  const list = index && field(d, index)
  const v = vectorWidth([8, 1], width, [o, i, parameterField(0)])
  const { threads, grid } = elementGrid(width, v)
  const args = d
    .kernel(FILE, `gather_${typeOf(x)}_${typeOf(out)}_${v}`)
    .bind(
      ['u64', 'u64', 'u64', 'u64', 'i32', 'i32', 'i32', 'u64', 'u64', 'u64'],
      [
        ...[o.address, i.address, list?.address ?? 0, faultAddress(d), 0, width, bounded(i.capacity)],
        ...[o.stride, i.stride, list?.stride ?? 0],
      ],
      { programmatic: true },
    )
  return kernelOf(list ? [o, list] : [o, i], rows => {
    args.set(4, rows)
    args.launch(grid(rows), threads)
  })
}
