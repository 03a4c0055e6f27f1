// The contract's methods over two modes, each guarded against overlapping another one of the same rank. No module state; any
// number of ranks may live in one thread.
import { Unreachable } from '../config/errors.js'
import type { DeviceEvent } from '../device/event.js'
import type { Operand } from '../device/ops.js'
import type { Step } from '../runtime/wait.js'
import type { CollectiveTag } from './communicator.js'
import { ExpertBufferError } from './errors.js'
import type {
  DispatchHandle,
  ExpertBuffer,
  ExpertBufferStatistics,
  ExpertRows,
  Finished,
  Hook,
  LowLatencyReceived,
  NormalHandle,
  NormalReceived,
  Routing,
} from './expert-buffer.js'
import type { ExpertBufferConfig } from './expert-buffer-config.js'
import type { DispatchLayout } from './layout.js'
import type { Signals } from './shm/ep/signals.js'
import type { Payload } from './wire/format.js'

export interface NormalOperations {
  drop(): void
  notify(tag: CollectiveTag, routing: Routing, worstCase: number | undefined): Step<NormalHandle>
  renotify(tag: CollectiveTag, handle: NormalHandle): Step<NormalHandle>
  send(tag: CollectiveTag, handle: NormalHandle, x: Payload): Step<Hook<NormalReceived>>
  sendCombine(
    tag: CollectiveTag,
    handle: NormalHandle,
    out: Operand,
    partials: Operand | undefined,
  ): Step<Hook<Operand>>
  release(tag: CollectiveTag, handle: DispatchHandle): Step<void>
}

export interface LowLatencyOperations {
  drop(): void
  send(tag: CollectiveTag, routing: Routing, x: Payload): Hook<LowLatencyReceived>
  sendCombine(tag: CollectiveTag, handle: DispatchHandle, rows: ExpertRows, out: Operand): Hook<Operand>
  release(tag: CollectiveTag, handle: DispatchHandle): Step<void>
}

/** What the two modes of a rank share. */
export interface BufferCore {
  readonly config: ExpertBufferConfig
  readonly member: number
  readonly rank: number
  readonly size: number
  readonly statistics: ExpertBufferStatistics
  readonly signals: Signals
  layout(routing: Routing): DispatchLayout
}

export class GuardedExpertBuffer implements ExpertBuffer {
  readonly config: ExpertBufferConfig
  readonly member: number
  readonly size: number
  readonly ranks: readonly number[]
  readonly #core: BufferCore
  readonly #normal: NormalOperations | null
  readonly #lowLatency: LowLatencyOperations | null
  #busy: string | null = null

  constructor(
    core: BufferCore,
    ranks: readonly number[],
    normal: NormalOperations | null,
    lowLatency: LowLatencyOperations | null,
  ) {
    this.#core = core
    this.config = core.config
    this.member = core.member
    this.size = core.size
    this.ranks = ranks
    this.#normal = normal
    this.#lowLatency = lowLatency
  }

  get statistics(): ExpertBufferStatistics {
    return this.#core.statistics
  }

  beginStep(step: number): void {
    this.#core.signals.step = step
  }

  setActive(active: readonly boolean[], generation: number): void {
    if (active.length !== this.size || !active[this.member] || generation < 1)
      throw new Unreachable('an active mask of another length, or without this rank, or without a generation')
    this.#busy = null
    this.#normal?.drop()
    this.#lowLatency?.drop()
    this.#core.signals.setActive(active, generation)
  }

  layout(routing: Routing): DispatchLayout {
    return this.#core.layout(routing)
  }

  *notify(tag: CollectiveTag, routing: Routing, options: { worstCase?: number } = {}): Step<NormalHandle> {
    return yield* this.#alone(tag, this.#normalMode('notify').notify(tag, routing, options.worstCase))
  }

  *renotify(tag: CollectiveTag, handle: NormalHandle): Step<NormalHandle> {
    return yield* this.#alone(tag, this.#normalMode('renotify').renotify(tag, handle))
  }

  *send(
    tag: CollectiveTag,
    handle: NormalHandle,
    x: Payload,
    options: { after?: DeviceEvent } = {},
  ): Step<Hook<NormalReceived>> {
    if (options.after) yield* options.after.wait()
    const hook = yield* this.#alone(tag, this.#normalMode('send').send(tag, handle, x))
    return () => this.#alone(tag, hook())
  }

  *dispatch(
    tag: CollectiveTag,
    routing: Routing,
    x: Payload,
    options: { after?: DeviceEvent; worstCase?: number } = {},
  ): Step<Finished<NormalReceived>> {
    const handle = yield* this.notify(tag, routing, options)
    const receive = yield* this.send(tag, handle, x, options)
    return yield* receive()
  }

  *sendCombine(
    tag: CollectiveTag,
    handle: NormalHandle,
    out: Operand,
    options: { after?: DeviceEvent; partials?: Operand } = {},
  ): Step<Hook<Operand>> {
    if (options.after) yield* options.after.wait()
    const mode = this.#normalMode('combine')
    const hook = yield* this.#alone(tag, mode.sendCombine(tag, handle, out, options.partials))
    return () => this.#alone(tag, hook())
  }

  *sendLowLatency(
    tag: CollectiveTag,
    routing: Routing,
    x: Payload,
    options: { after?: DeviceEvent } = {},
  ): Step<Hook<LowLatencyReceived>> {
    if (options.after) yield* options.after.wait()
    this.#enter(tag)
    this.#busy = null
    const hook = this.#lowLatencyMode('dispatch').send(tag, routing, x)
    return () => this.#alone(tag, hook())
  }

  *sendCombineLowLatency(
    tag: CollectiveTag,
    handle: DispatchHandle,
    rows: ExpertRows,
    out: Operand,
    options: { after?: DeviceEvent } = {},
  ): Step<Hook<Operand>> {
    if (options.after) yield* options.after.wait()
    this.#enter(tag)
    this.#busy = null
    const hook = this.#lowLatencyMode('combine').sendCombine(tag, handle, rows, out)
    return () => this.#alone(tag, hook())
  }

  *release(tag: CollectiveTag, handle: DispatchHandle): Step<void> {
    if (!handle.alive) {
      const fields = { rank: this.#core.rank, label: tag.label, operation: 'release', state: 'combined or released' }
      throw new ExpertBufferError('SY_EP_WRONG_ORDER', fields)
    }
    const mode = handle.mode === 'normal' ? this.#normalMode('release') : this.#lowLatencyMode('release')
    yield* this.#alone(tag, mode.release(tag, handle))
  }

  #normalMode(operation: string): NormalOperations {
    if (this.#normal) return this.#normal
    throw new ExpertBufferError('SY_EP_NO_MODE', { mode: 'normal', operation })
  }

  #lowLatencyMode(operation: string): LowLatencyOperations {
    if (this.#lowLatency) return this.#lowLatency
    throw new ExpertBufferError('SY_EP_NO_MODE', { mode: 'low-latency', operation })
  }

  /** @throws ExpertBufferError SY_EP_OVERLAP while another operation of this rank is still running */
  #enter(tag: CollectiveTag): void {
    if (this.#busy !== null)
      throw new ExpertBufferError('SY_EP_OVERLAP', { rank: this.#core.rank, label: tag.label, running: this.#busy })
    this.#busy = tag.label
  }

  *#alone<T>(tag: CollectiveTag, step: Step<T>): Step<T> {
    this.#enter(tag)
    try {
      return yield* step
    } finally {
      this.#busy = null
    }
  }
}
