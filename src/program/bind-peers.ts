// Dispatch, experts and combine between GPUs, as launches that wait for nothing on the host: how many rows come is known on the
// device only. Experts run on all rows that could have come; those that did not have ids -1.
import type { LaunchTokens, PeerRank } from '../comm/peer/index.js'
import type { Area } from '../comm/peer/region.js'
import { Unreachable } from '../config/errors.js'
import { elementBytes, type Kernel, type Operand } from '../device/ops.js'
import type { DispatchOperation } from './bind-dispatch.js'
import type { Resolver } from './binding.js'
import type { DispatchMode } from './expert-dispatch.js'

/** Both halves of a low-latency kernel in one launch. */
const BOTH_PHASES = 3
/** Rows by slot that are summed already. */
const SUMMED_ROWS = 1

/** A dispatch whose later operations are still to be bound. */
interface Open {
  readonly mode: DispatchMode
  readonly parity: number
  readonly ids: Operand
  readonly weights: Operand
}

/** Binds the exchange of one rank's programs. */
export class PeerExchange {
  readonly #peer: PeerRank
  #own = 0
  #all = 0
  #dispatches = 0
  #open: Open | null = null

  constructor(peer: PeerRank) {
    this.#peer = peer
  }

  /** Before the launches of a step. @param own rows that this rank runs on @param all rows of all ranks, or more */
  begin(own: number, all: number): void {
    this.#own = own
    this.#all = all
  }

  /** In program order. */
  bind(op: DispatchOperation, r: Resolver): Kernel {
    switch (op.kind) {
      case 'dispatch_send':
        return this.#send(op.args, r)
      case 'dispatched_experts':
        return this.#experts(op.args, r)
      case 'combine_send':
        return this.#combine(op.args, r)
      // One launch does both halves.
      case 'dispatch_receive':
      case 'combine_receive':
        return () => {}
    }
  }

  #address(o: Operand): number {
    return this.#peer.kernels.address(o)
  }

  #send({ mode, x, ids, weights }: Extract<DispatchOperation, { kind: 'dispatch_send' }>['args'], r: Resolver): Kernel {
    const peer = this.#peer
    const open = { mode, parity: this.#dispatches++ & 1, ids: r.at(ids), weights: r.at(weights) }
    this.#open = open
    const rows = r.at(x)
    const { topK } = peer.config
    const wire = { kind: 'wire', address: this.#address(rows), stride: rows.stride * bytesOf(rows) } as const
    const routing = this.#routing(open)
    if (mode === 'low_latency') {
      const slots = peer.bindSlots(open.parity, BOTH_PHASES, routing, wire)
      return () => this.#launchSlots(slots)
    }
    const notify = peer.bindNotify(open.parity, routing)
    const dispatch = peer.bindDispatch(open.parity, routing, wire)
    const received = peer.at('ids', open.parity)
    return () => {
      // Nobody writes here before all have announced their counts, and this rank does so behind the fill.
      peer.kernels.stream.fill(received, 0xff, this.#received(mode) * topK * 4)
      notify.of(this.#own)
      dispatch.of(this.#own)
    }
  }

  #experts(args: Extract<DispatchOperation, { kind: 'dispatched_experts' }>['args'], r: Resolver): Kernel {
    const { mode, topK, activation, gateUpBias, downBias } = args
    const { parity } = this.#expect(mode)
    const low = mode === 'low_latency'
    const act = r.at(args.partials).dtype
    const { rowBytes, slotBytes, partialBytes } = this.#peer.region
    const most = this.#most(mode)
    const rows = (area: Area, stride: number): Operand => ({
      span: this.#span(area, parity, most * stride),
      offset: 0,
      stride: stride / elementBytes(act),
      ...(act === undefined ? {} : { dtype: act }),
    })
    const words = (area: Area): Operand => ({
      span: this.#span(area, parity, most * topK * 4),
      offset: 0,
      stride: topK,
    })
    const kernel = r.ops.experts({
      x: low ? rows('slots', slotBytes) : rows('rows', rowBytes),
      ids: words(low ? 'slotIds' : 'ids'),
      weights: words(low ? 'slotWeights' : 'weights'),
      // Where peers look for partial rows.
      out: low ? r.at(args.partials) : rows('partials', partialBytes),
      scratch: r.at(args.scratch),
      gateUp: r.matrix(args.gateUp),
      down: r.matrix(args.down),
      topK,
      activation,
      ...(gateUpBias === undefined ? {} : { gateUpBias: r.vector(gateUpBias) }),
      ...(downBias === undefined ? {} : { downBias: r.vector(downBias) }),
    })
    return () => {
      const count = this.#received(mode)
      if (count > 0) kernel(count)
    }
  }

  #combine(args: Extract<DispatchOperation, { kind: 'combine_send' }>['args'], r: Resolver): Kernel {
    const { mode } = args
    const open = this.#expect(mode)
    const to = this.#rows(r.at(args.out))
    if (mode === 'normal') {
      const combine = this.#peer.bindCombine(open.parity, 0, to)
      return () => combine.of(this.#own)
    }
    const y = this.#rows(r.at(args.partials))
    const back = this.#peer.bindBack(open.parity, BOTH_PHASES, SUMMED_ROWS, y, this.#routing(open), to)
    return () => this.#launchSlots(back)
  }

  /** Padding goes nowhere, so a padded batch may have more rows than there are slots. */
  #launchSlots(launch: LaunchTokens): void {
    launch.of(Math.min(this.#own, this.#peer.region.slots))
  }

  /** Rows that may hold something. */
  #received(mode: DispatchMode): number {
    return mode === 'normal' ? this.#all : this.#most(mode)
  }

  #most(mode: DispatchMode): number {
    const { rows, slots } = this.#peer.region
    return mode === 'normal' ? rows : this.#peer.size * slots
  }

  #routing({ ids, weights }: Open) {
    const words = (o: Operand) => ({ address: this.#address(o), stride: o.stride })
    return { tokens: 0, ids: words(ids), weights: words(weights) }
  }

  #rows(o: Operand) {
    return { address: this.#address(o), stride: o.stride, dtype: o.dtype ?? ('f32' as const) }
  }

  #span(area: Area, parity: number, byteLength: number) {
    const address = this.#peer.at(area, parity)
    return { buffer: { device: this.#peer.context.device, address }, byteOffset: 0, byteLength }
  }

  #expect(mode: DispatchMode): Open {
    if (this.#open?.mode !== mode) throw new Unreachable(`an operation of ${mode} dispatch without its beginning`)
    return this.#open
  }
}

const bytesOf = (o: Operand): number => elementBytes(o.dtype)
