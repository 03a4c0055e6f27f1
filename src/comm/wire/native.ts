// The wire kernels of the native addon (kernels/cpu/wire.cpp). A call writes its arguments as numbers into one reused array.
// Addresses are looked up once for each buffer: a SharedArrayBuffer never moves.
import { type Addon, loadAddon } from '../../device/cpu/addon.js'
import { WIRE_DTYPES } from './format.js'
import type { Rows, WireKernels } from './kernels.js'
import { referenceWireKernels } from './reference.js'

/** The addon's functions of wire-bind.cpp. */
export interface WireAddon extends Pick<Addon, 'isas' | 'addressOf'> {
  wireTransfer(isa: number, numbers: Float64Array, fromIndex?: Int32Array, toIndex?: Int32Array): void
  wireScatter(isa: number, numbers: Float64Array, table: Int32Array): void
  wireSum(isa: number, numbers: Float64Array, table: Int32Array): void
  wireWeightedSum(
    isa: number,
    numbers: Float64Array,
    index: Int32Array,
    weights: Float32Array,
    toIndex?: Int32Array,
  ): void
}

const ROW_NUMBERS = 6
const HEAD_NUMBERS = 4

export class NativeWireKernels implements WireKernels {
  readonly name: string
  readonly #addon: WireAddon
  readonly #isa: number
  readonly #addresses = new WeakMap<Uint8Array, number>()
  #numbers = new Float64Array(HEAD_NUMBERS + 16 * ROW_NUMBERS)

  constructor(addon: WireAddon, isa: number) {
    this.#addon = addon
    this.#isa = isa
    this.name = `native ${addon.isas()[isa]}`
  }

  transfer(a: Parameters<WireKernels['transfer']>[0]): void {
    if (a.n === 0) return
    const numbers = this.#head(2, a.to.format.hidden, a.n, a.fromRow ?? 0, a.toRow ?? 0)
    this.#rows(0, a.from)
    this.#rows(1, a.to)
    numbers[HEAD_NUMBERS + 2 * ROW_NUMBERS] = a.caching === undefined ? 0 : a.caching === 'bypass' ? 1 : 2
    this.#addon.wireTransfer(this.#isa, numbers, a.fromIndex, a.toIndex)
  }

  scatter(a: Parameters<WireKernels['scatter']>[0]): void {
    if (a.n === 0) return
    const numbers = this.#head(1 + a.to.length, a.from.format.hidden, a.n, a.fromRow, a.to.length)
    this.#rows(0, a.from)
    for (let m = 0; m < a.to.length; m++) this.#rows(1 + m, a.to[m]!)
    this.#addon.wireScatter(this.#isa, numbers, a.table)
  }

  sum(a: Parameters<WireKernels['sum']>[0]): void {
    if (a.n === 0) return
    const numbers = this.#head(1 + a.from.length, a.out.format.hidden, a.n, a.outRow, a.from.length)
    this.#rows(0, a.out)
    for (let m = 0; m < a.from.length; m++) this.#rows(1 + m, a.from[m]!)
    this.#addon.wireSum(this.#isa, numbers, a.table)
  }

  weightedSum(a: Parameters<WireKernels['weightedSum']>[0]): void {
    if (a.n === 0) return
    const numbers = this.#head(2, a.to.format.hidden, a.n, a.topK, a.toRow ?? 0)
    this.#rows(0, a.from)
    this.#rows(1, a.to)
    this.#addon.wireWeightedSum(this.#isa, numbers, a.index, a.weights, a.toIndex)
  }

  #head(rows: number, hidden: number, n: number, c: number, d: number): Float64Array {
    const needed = HEAD_NUMBERS + rows * ROW_NUMBERS
    if (needed > this.#numbers.length) this.#numbers = new Float64Array(2 * needed)
    const numbers = this.#numbers
    numbers[0] = hidden
    numbers[1] = n
    numbers[2] = c
    numbers[3] = d
    return numbers
  }

  #rows(i: number, r: Rows): void {
    const numbers = this.#numbers
    const at = HEAD_NUMBERS + i * ROW_NUMBERS
    numbers[at] = r.u8.length === 0 ? 0 : this.#address(r.u8) + r.byteOffset
    numbers[at + 1] = r.capacity
    numbers[at + 2] = r.rowBytes
    numbers[at + 3] = WIRE_DTYPES.indexOf(r.format.dtype)
    numbers[at + 4] = r.format.scaleOffset
    numbers[at + 5] = r.format.roundScales ? 1 : 0
  }

  #address(view: Uint8Array): number {
    let address = this.#addresses.get(view)
    if (address === undefined) {
      address = this.#addon.addressOf(view)
      this.#addresses.set(view, address)
    }
    return address
  }
}

/**
 * The kernels that suit what the device runs: native ones when the addon loads (and has them), else the reference.
 * @param isa instruction set by name; default: SWITCHYARD_CPU_ISA, else the best
 */
export function createWireKernels(
  kernels: 'auto' | 'native' | 'reference' = 'auto',
  isa: string | undefined = process.env['SWITCHYARD_CPU_ISA'],
): WireKernels {
  if (kernels === 'reference') return referenceWireKernels
  const addon = loadAddon().addon as (Addon & Partial<WireAddon>) | undefined
  if (!addon?.wireSum) return referenceWireKernels
  const available = addon.isas()
  const index = isa ? available.indexOf(isa) : available.length - 1
  return index < 0 ? referenceWireKernels : new NativeWireKernels(addon as WireAddon, index)
}
