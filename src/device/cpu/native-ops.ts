// Ops over compiled kernels (the native addon, or WebAssembly): an operation's fixed arguments are written as a flat list
// of numbers, checked and kept by the library, and the kernel that comes back is its own function: a call costs little.
// The order of the numbers is that of kernels/cpu/bind.cpp; keep the two side by side.
import { Unreachable } from '../../config/errors.js'
import { hostBuffer, type MemorySpan } from '../memory.js'
import type {
  GatedActivation,
  Kernel,
  Operand,
  Ops,
  PackedMatrix,
  PagedBatch,
  ParameterVector,
  RouterSpec,
} from '../ops.js'

/** What binding needs of compiled kernels: the addon has it, and so have the WebAssembly kernels. */
export interface KernelLibrary {
  /** Instruction sets, worst first; their indices are the `isa` arguments. */
  isas(): string[]
  /** Binds operation number `op`. Throws when operands leave their spans. */
  bind(isa: number, op: number, numbers: Float64Array): (rows: number) => void
  /** Address of the first byte of a view, as the library's kernels reach it. */
  addressOf(view: Uint8Array): number
}

const OPERATIONS = [
  'embed',
  'rmsNorm',
  'addRmsNorm',
  'add',
  'copy',
  'gatherRows',
  'linear',
  'headLinear',
  'rope',
  'storeKv',
  'attention',
  'router',
  'gatedActivation',
  'sigmoidScale',
  'experts',
  'sample',
  'sumAddRmsNorm',
] as const
type Operation = (typeof OPERATIONS)[number]

const SCORING = { softmax: 0, sigmoid: 1, softmax_after_topk: 2 } as const
export const KIND = { f32: 0, bf16: 1 } as const

/** The numbers of one bind, and the buffers they point into. */
export class ArgumentList {
  readonly #addon: Pick<KernelLibrary, 'addressOf'>
  readonly #numbers: number[] = []
  readonly buffers: SharedArrayBuffer[] = []
  constructor(addon: Pick<KernelLibrary, 'addressOf'>) {
    this.#addon = addon
  }

  numbers(...values: (number | boolean)[]): this {
    for (const v of values) this.#numbers.push(Number(v))
    return this
  }

  /** Address and bytes. Spans longer than a typed array may be (Node 20: 2^32 elements) are fine. */
  span(s: MemorySpan): this {
    if (s.byteOffset + s.byteLength > hostBuffer(s).byteLength || s.byteLength < 1)
      throw new Unreachable(`a span of ${s.byteLength} bytes at ${s.byteOffset} lies outside its buffer`)
    this.buffers.push(hostBuffer(s))
    return this.numbers(this.#addon.addressOf(new Uint8Array(hostBuffer(s), s.byteOffset, 1)), s.byteLength)
  }

  rows(o: Operand): this {
    return this.span(o.span).numbers(o.offset, o.stride)
  }

  matrix(m: PackedMatrix): this {
    return this.span(m.span).numbers(KIND[m.kind], m.n, m.k, m.count, m.strideBytes)
  }

  vector(v: ParameterVector | undefined): this {
    return v ? this.span(v.span).numbers(v.length) : this.numbers(0, 0, 0)
  }

  activation(a: GatedActivation): this {
    return a.kind === 'silu' ? this.numbers(0, 0, 0) : this.numbers(1, a.limit, a.alpha)
  }

  finish(): Float64Array {
    return Float64Array.from(this.#numbers)
  }
}

/** The compiled kernels of one instruction set. */
export class NativeOps implements Ops {
  readonly name: string
  readonly #addon: KernelLibrary
  readonly #isa: number
  /** A bound kernel holds addresses only; this keeps the memory behind them as long as the kernel itself. */
  readonly #keeps = new WeakMap<Kernel, SharedArrayBuffer[]>()

  /** `isa` is an index into `addon.isas()`; `family` stands before its name in reports. */
  constructor(addon: KernelLibrary, isa: number, family: 'native' | 'wasm' = 'native') {
    this.#addon = addon
    this.#isa = isa
    this.name = `${family} ${addon.isas()[isa]}`
  }

  #list(): ArgumentList {
    return new ArgumentList(this.#addon)
  }

  #bind(operation: Operation, list: ArgumentList): Kernel {
    let kernel: Kernel
    try {
      kernel = this.#addon.bind(this.#isa, OPERATIONS.indexOf(operation), list.finish())
    } catch (error) {
      throw new Unreachable(`binding ${operation}: ${error instanceof Error ? error.message : String(error)}`)
    }
    this.#keeps.set(kernel, list.buffers)
    return kernel
  }

  embed(a: { out: Operand; ids: Operand; table: PackedMatrix }): Kernel {
    return this.#bind('embed', this.#list().matrix(a.table).rows(a.out).rows(a.ids))
  }

  rmsNorm(a: {
    out: Operand
    x: Operand
    weight: ParameterVector
    width: number
    groups: number
    eps: number
  }): Kernel {
    const list = this.#list().numbers(a.width, a.groups, a.eps).vector(a.weight)
    return this.#bind('rmsNorm', list.rows(a.out).rows(a.x))
  }

  addRmsNorm(a: {
    out: Operand
    residual: Operand
    x: Operand
    weight: ParameterVector
    width: number
    eps: number
  }): Kernel {
    const list = this.#list().numbers(a.width, a.eps).vector(a.weight)
    return this.#bind('addRmsNorm', list.rows(a.out).rows(a.residual).rows(a.x))
  }

  sumAddRmsNorm(a: {
    out: Operand
    residual: Operand
    xs: readonly Operand[]
    first: Operand
    weight: ParameterVector
    width: number
    eps: number
  }): Kernel {
    const list = this.#list().numbers(a.width, a.eps, a.xs.length).vector(a.weight)
    list.rows(a.out).rows(a.residual).rows(a.first)
    for (const x of a.xs) list.rows(x)
    return this.#bind('sumAddRmsNorm', list)
  }

  add(a: { out: Operand; a: Operand; b: Operand; width: number }): Kernel {
    return this.#bind('add', this.#list().numbers(a.width).rows(a.out).rows(a.a).rows(a.b))
  }

  copy(a: { out: Operand; x: Operand; width: number }): Kernel {
    return this.#bind('copy', this.#list().numbers(a.width).rows(a.out).rows(a.x))
  }

  gatherRows(a: { out: Operand; x: Operand; index: Operand; width: number }): Kernel {
    return this.#bind('gatherRows', this.#list().numbers(a.width).rows(a.out).rows(a.x).rows(a.index))
  }

  linear(a: { out: Operand; x: Operand; weight: PackedMatrix; bias?: ParameterVector; accumulate?: boolean }): Kernel {
    const list = this.#list()
      .matrix(a.weight)
      .numbers(a.accumulate ?? false)
      .vector(a.bias)
    return this.#bind('linear', list.rows(a.out).rows(a.x))
  }

  headLinear(a: {
    out: Operand
    outHeadStride: number
    x: Operand
    xHeadStride: number
    weight: PackedMatrix
  }): Kernel {
    const list = this.#list().matrix(a.weight).numbers(a.outHeadStride, a.xHeadStride)
    return this.#bind('headLinear', list.rows(a.out).rows(a.x))
  }

  rope(a: {
    out: Operand
    outHeadStride: number
    x: Operand
    xHeadStride: number
    heads: number
    width: number
    positions: Operand
    cosSin: MemorySpan
    interleaved: boolean
  }): Kernel {
    const list = this.#list().numbers(a.heads, a.width, a.outHeadStride, a.xHeadStride, a.interleaved)
    return this.#bind('rope', list.span(a.cosSin).rows(a.out).rows(a.x).rows(a.positions))
  }

  storeKv(a: { kv: Operand; x: Operand; slots: Operand; width: number }): Kernel {
    return this.#bind('storeKv', this.#list().numbers(a.width).rows(a.kv).rows(a.x).rows(a.slots))
  }

  attention(a: {
    out: Operand
    q: Operand
    kv: Operand
    batch: PagedBatch
    heads: number
    kvHeads: number
    qkWidth: number
    vWidth: number
    keyOffset: number
    valueOffset: number
    scale: number
    window?: number
    sinks?: ParameterVector
  }): Kernel {
    const list = this.#list()
      .numbers(a.heads, a.kvHeads, a.qkWidth, a.vWidth, a.keyOffset, a.valueOffset, a.scale)
      .numbers(a.window ?? 0, a.batch.pageSize)
      .vector(a.sinks)
      .rows(a.out)
      .rows(a.q)
      .rows(a.kv)
    return this.#bind('attention', list.rows(a.batch.rowSequence).rows(a.batch.positions).rows(a.batch.pageTable))
  }

  router(a: { ids: Operand; weights: Operand; logits: Operand; bias?: ParameterVector; spec: RouterSpec }): Kernel {
    const s = a.spec
    const list = this.#list()
      .numbers(s.experts, s.topK, SCORING[s.scoring], s.groups, s.topGroups, s.groupScore === 'top2')
      .numbers(s.normalize, s.scale)
      .vector(a.bias)
    return this.#bind('router', list.rows(a.ids).rows(a.weights).rows(a.logits))
  }

  gatedActivation(a: { out: Operand; x: Operand; width: number; activation: GatedActivation }): Kernel {
    const list = this.#list().numbers(a.width).activation(a.activation)
    return this.#bind('gatedActivation', list.rows(a.out).rows(a.x))
  }

  sigmoidScale(a: { out: Operand; x: Operand; gate: Operand; width: number; accumulate?: boolean }): Kernel {
    const list = this.#list().numbers(a.width, a.accumulate ?? false)
    return this.#bind('sigmoidScale', list.rows(a.out).rows(a.x).rows(a.gate))
  }

  experts(a: {
    out: Operand
    x: Operand
    ids: Operand
    weights: Operand
    topK: number
    gateUp: PackedMatrix
    down: PackedMatrix
    gateUpBias?: ParameterVector
    downBias?: ParameterVector
    activation: GatedActivation
    scratch: Operand
  }): Kernel {
    const list = this.#list().numbers(a.topK).activation(a.activation).matrix(a.gateUp).matrix(a.down)
    list.vector(a.gateUpBias).vector(a.downBias)
    return this.#bind('experts', list.rows(a.out).rows(a.x).rows(a.ids).rows(a.weights).rows(a.scratch))
  }

  sample(a: { out: Operand; logits: Operand; params: Operand; vocab: number; logprob?: Operand }): Kernel {
    const list = this.#list().numbers(a.vocab).rows(a.out).rows(a.logits).rows(a.params)
    if (a.logprob) list.numbers(1).rows(a.logprob)
    else list.numbers(0)
    return this.#bind('sample', list)
  }
}
