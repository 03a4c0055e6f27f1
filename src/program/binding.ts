// What the names of a program stand for on one rank, and looking them up.
import type { Communicator, Parity } from '../comm/index.js'
import { Unreachable } from '../config/errors.js'
import type { MemorySpan } from '../device/memory.js'
import type { ActivationDtype, Operand, Ops, PackedMatrix, ParameterVector } from '../device/ops.js'
import type { LoadedWeights } from '../formats/weight-spec.js'
import type { Step } from '../runtime/wait.js'
import type { IdTables } from './bind-ids.js'
import type { DispatchMode, ExpertDispatcher, ReceivedTokens } from './expert-dispatch.js'
import type { ProgramGroup, Ref } from './operation.js'
import type { BufferSpec, Program, RowValues } from './program.js'

/** Everything a program's names stand for on one rank. */
export interface Binding {
  readonly ops: Ops
  /** What buffers of dtype `act` hold. Left out: f32. */
  readonly activation?: ActivationDtype
  /** Experts drawn evenly instead of routed, with the weights that the router gave. For measurements on host memory. */
  readonly fakeRouting?: boolean
  readonly program: Program
  readonly weights: LoadedWeights
  /** One span a buffer; arena buffers are pieces of one span. */
  readonly buffers: Readonly<Record<string, MemorySpan>>
  readonly ropeTables: Readonly<Record<string, MemorySpan>>
  readonly idTables: IdTables
  readonly groups: Readonly<Record<ProgramGroup, Communicator>>
  /** By mode; empty without an all-to-all backend. */
  readonly dispatchers: Readonly<Partial<Record<DispatchMode, ExpertDispatcher>>>
}

/** What runs on the host: a move that looks at the plan, or a collective that waits. */
export type HostBound =
  | { readonly how: 'local'; readonly run: (values: RowValues) => void }
  | { readonly how: 'collective'; readonly run: (values: RowValues) => Step<void> }

export const specsOf = (program: Program): ReadonlyMap<string, BufferSpec> =>
  new Map(program.buffers.map(b => [b.name, b]))

/** Looks names up; a missing one is a bug in the wiring. */
export class Resolver {
  readonly #binding: Binding
  readonly #specs: ReadonlyMap<string, BufferSpec>
  readonly #parity: Parity | null

  /** @param parity the place of exchange buffers; null for operations that work in none */
  constructor(binding: Binding, specs: ReadonlyMap<string, BufferSpec>, parity: Parity | null = null) {
    this.#binding = binding
    this.#specs = specs
    this.#parity = parity
  }

  get ops(): Ops {
    return this.#binding.ops
  }

  #routers = 0

  /** Routers in the order in which they are bound, from 0. */
  nextRouter(): number {
    return this.#routers++
  }

  get fakeRouting(): boolean {
    return this.#binding.fakeRouting ?? false
  }

  get idTables(): IdTables {
    return this.#binding.idTables
  }

  dispatcher(mode: DispatchMode): ExpertDispatcher {
    const dispatcher = this.#binding.dispatchers[mode]
    if (!dispatcher) throw new Unreachable(`no ${mode} dispatcher was made`)
    return dispatcher
  }

  readonly received = new Map<DispatchMode, ReceivedTokens>()

  group(name: ProgramGroup): Communicator {
    return this.#binding.groups[name]
  }

  isExchange(ref: Ref): boolean {
    return this.#specs.get(ref.buffer)?.kind === 'exchange'
  }

  /** This rank's next contribution to the group, as rows of the buffer. */
  #exchange(spec: BufferSpec, column: number): Operand {
    const group = this.#binding.groups[spec.group!]
    if (this.#parity === null) throw new Unreachable(`buffer ${spec.name} has no one place`)
    return { ...group.windows(spec.columns)[this.#parity].members[group.member]!, offset: column }
  }

  at(ref: Ref): Operand {
    const exchange = this.#specs.get(ref.buffer)
    if (exchange?.kind === 'exchange') return this.#exchange(exchange, ref.column)
    const span = this.#binding.buffers[ref.buffer]
    const spec = this.#specs.get(ref.buffer)
    if (!span || !spec) throw new Unreachable(`buffer ${ref.buffer} has no memory`)
    const operand = { span, offset: ref.column, stride: spec.columns }
    return spec.dtype === 'act' && this.#binding.activation === 'bf16' ? { ...operand, dtype: 'bf16' } : operand
  }

  matrix(name: string): PackedMatrix {
    const matrix = this.#binding.weights.matrices[name]
    if (!matrix) throw new Unreachable(`matrix ${name} was not loaded`)
    return matrix
  }

  vector(name: string): ParameterVector {
    const vector = this.#binding.weights.vectors[name]
    if (!vector) throw new Unreachable(`vector ${name} was not loaded`)
    return vector
  }

  table(name: string): MemorySpan {
    const table = this.#binding.ropeTables[name]
    if (!table) throw new Unreachable(`rope table ${name} has no memory`)
    return table
  }
}
