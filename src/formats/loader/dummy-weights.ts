// `--load-format dummy`: random weights from a plan alone, to measure a model whose weights one does not have.
// Invariant: an element is a pure function of (seed, tensor name, index in the tensor), so shards of any layout agree with the
// whole, and runs with one seed are equal. Matrices are N(0, 0.02²), as models are initialised; norm weights 1; biases 0.
import { mixBits } from '../../runtime/mix-bits.js'
import { CounterRandom, STREAM } from '../../runtime/random.js'
import type { LoadedWeights } from '../weight-spec.js'
import { narrowPlan } from './narrow-plan.js'
import { type PackOptions, packPlan } from './pack-plan.js'
import { matrixStrides } from './pack-source.js'

const STANDARD_DEVIATION = 0.02
/** Elements made at once. */
const CHUNK = 1 << 20
const TABLE_BITS = 16

export interface DummyOptions extends PackOptions {
  readonly seed: number
}

export async function loadDummyWeights(options: DummyOptions): Promise<LoadedWeights> {
  const table = normalTable(options.seed)
  // A bf16 checkpoint is what a bf16 run is a stand-in for.
  const narrow = options.packer.keepsBf16 && options.dtype === 'bf16'
  const plan = narrow ? narrowPlan(options.plan, () => true) : options.plan
  return packPlan({ ...options, plan }, (piece, weight, use) => {
    const { count } = piece.rows
    if (weight.form === 'vector') {
      const values = new Float32Array(count).fill(/norm/.test(piece.tensor) ? 1 : 0)
      use(0, count, { dtype: 'F32', bytes: bytesOf(values), offset: 0, strideN: 1, strideK: 0 })
      return
    }
    const { offset, strideN, strideK, k } = matrixStrides(piece)
    const rowsAtOnce = Math.max(1, Math.floor(CHUNK / k))
    const key = hashName(piece.tensor)
    if (options.packer.drawMatrix) {
      use(0, count, { table, key, offset, strideN, strideK })
      return
    }
    for (let first = 0; first < count; first += rowsAtOnce) {
      const rows = Math.min(rowsAtOnce, count - first)
      const values = new Float32Array(rows * k)
      for (let r = 0; r < rows; r++) {
        const row = offset + (first + r) * strideN
        for (let c = 0; c < k; c++) values[r * k + c] = table[tablePlace(key, row + c * strideK)]!
      }
      use(first, rows, { dtype: 'F32', bytes: bytesOf(values), offset: 0, strideN: k, strideK: 1 })
    }
  })
}

const bytesOf = (values: Float32Array): Uint8Array =>
  new Uint8Array(values.buffer, values.byteOffset, values.byteLength)

/** Normal numbers by Box and Muller. Elements pick from the table, which is far quicker than drawing each of billions. */
function normalTable(seed: number): Float32Array {
  const random = new CounterRandom(seed >>> 0, STREAM.dummyWeights)
  const table = new Float32Array(1 << TABLE_BITS)
  for (let i = 0; i < table.length; i += 2) {
    const radius = STANDARD_DEVIATION * Math.sqrt(-2 * Math.log(1 - random.unit()))
    const angle = 2 * Math.PI * random.unit()
    table[i] = radius * Math.cos(angle)
    table[i + 1] = radius * Math.sin(angle)
  }
  return table
}

/** FNV-1a over UTF-16 units. */
function hashName(name: string): number {
  let hash = 0x811c9dc5
  for (let i = 0; i < name.length; i++) hash = Math.imul(hash ^ name.charCodeAt(i), 0x01000193)
  return hash >>> 0
}

/** Scrambles (key, index) to a place in the table. `index` may exceed 32 bits. */
const tablePlace = (key: number, index: number): number =>
  mixBits(key ^ (index >>> 0) ^ Math.imul(Math.floor(index / 4294967296), 0x9e3779b1)) >>> (32 - TABLE_BITS)
