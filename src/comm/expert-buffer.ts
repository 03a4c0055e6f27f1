// The ExpertBuffer contract: moves hidden states from the ranks that own tokens to the ranks that own their experts
// (dispatch), and the experts' results back (combine). Two ways: `normal` sends exact counts first and receives compactly;
// `lowLatency` has fixed slots and no counts to wait for. Every method that can wait is a Step.
//
// All members call the same operations in the same order, with the same tag; only token counts differ, and they may be 0.
// Arrivals compare what they publish: disagreement is RankError SY_RANK_DISAGREES, misuse is ExpertBufferError, neither
// is corruption. A result is alive from its dispatch until its combine's `done` (or its release); `results` of them may
// be alive at once. What they show lies in memory that the buffer lends, and is valid until their combine has been sent. Placement, replica
// choice, quantisation policy and row alignment are the caller's: ids here are physical experts.
import type { DeviceEvent } from '../device/event.js'
import type { Operand } from '../device/ops.js'
import type { Step } from '../runtime/wait.js'
import type { CollectiveTag } from './communicator.js'
import type { ExpertBufferConfig } from './expert-buffer-config.js'
import type { DispatchLayout } from './layout.js'
import type { Payload } from './wire/format.js'

/** What an operation gave, and when the device has finished making it. On `cpu` the event is done already. */
export interface Finished<T> {
  readonly result: T
  readonly done: DeviceEvent
}

/**
 * The receiving half of an operation whose sending half has been done. Between the two nothing waits and other work may
 * run. Call it once, before the next half of the same result.
 */
export type Hook<T> = () => Step<Finished<T>>

/** Work must not begin before `after` is done. Buffers named in the arguments stay untouched until `done`. */
interface Ordered {
  readonly after?: DeviceEvent
}

/** The tokens of this rank and where they go. */
export interface Routing {
  readonly tokens: number
  /** i32 [tokens, topK]: physical expert of each slot; -1 = none. */
  readonly ids: Operand
  /** f32 [tokens, topK]: weights travel with the token. */
  readonly weights: Operand
  /** Tokens that each member brings, where the caller knows: a member that brings others is a disagreement. */
  readonly tokensOfMember?: readonly number[]
}

/** One dispatch and its combine; made by `notify`, `renotify` or `sendLowLatency`. */
export interface DispatchHandle {
  readonly mode: 'normal' | 'lowLatency'
  /** Which of the alternating results this is: the parity, for buffers and captured graphs. */
  readonly parity: number
  /** Tokens of this rank. */
  readonly tokens: number
  /** Of this rank's tokens, by member: what it sends. */
  readonly layout: DispatchLayout
  /** False after `done` of its combine or release. */
  readonly alive: boolean
}

/** A normal dispatch whose counts are known. Tied to its layout; `renotify` reuses it for other rows of the same tokens. */
export interface NormalHandle extends DispatchHandle {
  readonly mode: 'normal'
  /** Rows this rank receives. */
  readonly received: number
  /** i32 [members + 1]: rows of source member s are [sourceStart[s], sourceStart[s + 1]). */
  readonly sourceStart: Int32Array
  /** i32 [local experts]: (token, expert) pairs received. Not aligned: alignment is the caller's. */
  readonly tokensPerExpert: Int32Array
  /** Rows that the result's operands show: `received`, or the worst case that was asked for. */
  readonly bound: number
}

/** What a normal dispatch received, ordered by (source member, source token). Valid until its combine is sent. */
export interface NormalReceived {
  readonly handle: NormalHandle
  /** [bound, hidden]; rows from `received` on are undefined. */
  readonly x: Payload
  /** i32 [bound, topK]: local expert of each of the token's own slots; -1 = not here. Rows from `received` on are -1. */
  readonly ids: Operand
  /** f32 [bound, topK]; 0 where the id is -1. */
  readonly weights: Operand
  /** i32 [bound]: index of the token on its source member. */
  readonly sourceToken: Operand
  /** f32 [bound, hidden]: experts that write their partial rows here save `sendCombine` a copy. */
  readonly partials: Operand
}

/** What a low-latency dispatch received. Slot s·slots + i holds the i-th token that source member s sent here. */
export interface LowLatencyReceived {
  readonly handle: DispatchHandle
  /** [members·slots, hidden]; slots that nothing was sent to are undefined. */
  readonly x: Payload
  /** i32, f32 [members·slots, topK] as in NormalReceived; -1 throughout in slots that nothing was sent to. */
  readonly ids: Operand
  readonly weights: Operand
  /** i32 [members·slots]: index of the token on its source member; -1 in slots that nothing was sent to. */
  readonly sourceToken: Operand
  /** i32 [members]: tokens from each source. */
  readonly tokensPerSource: Int32Array
  /** i32 [local experts, capacity]: the slots whose tokens expert e works on, first tokensPerExpert[e] of them valid. */
  readonly slotOfRow: Operand
  /** i32 [local experts]: valid rows of each expert (`masked_m`). */
  readonly tokensPerExpert: Int32Array
  /** i32 [local experts, members, 2]: begin and count of each source's block among the rows of an expert. */
  readonly ranges: Int32Array
  /** Rows of an expert at most: members·slots. */
  readonly capacity: number
}

/**
 * What the experts made of a low-latency result.
 * `experts`: [local experts, capacity, hidden], row (e, j) for slot slotOfRow[e][j], unweighted; the buffer applies weights.
 * `partials`: [members·slots, hidden], one row a slot, weighted and added already (reduce 'sender' only).
 */
export type ExpertRows =
  | { readonly kind: 'experts'; readonly rows: Operand }
  | { readonly kind: 'partials'; readonly rows: Operand }

/** Grows as operations run; read it between steps. */
export interface ExpertBufferStatistics {
  /** Received (token, expert) pairs of each local expert. */
  readonly receivedPerExpert: Float64Array
  /** Microseconds waited for each member, members awaited in ascending order. Stays 0 without a clock. */
  readonly waitedPerSource: Float64Array
  /** Most rows received in one normal dispatch, and tokens brought to one low-latency dispatch: how full buffers get. */
  readonly peakReceived: number
  readonly peakSlots: number
  /** Lanes whose transit ring was full when this rank fell asleep, over all sleeps. */
  readonly ringStalls: number
}

export interface ExpertBuffer {
  /** Index of this rank in its expert-parallel group. */
  readonly member: number
  readonly size: number
  /** Global rank of each member, ascending. */
  readonly ranks: readonly number[]
  readonly config: ExpertBufferConfig
  readonly statistics: ExpertBufferStatistics

  /** Starts the comparison of a new engine step: operations publish this number. */
  beginStep(step: number): void

  /**
   * Members that are false are dead: neither sent to nor awaited, no tokens come from them, and their experts add nothing.
   * For recovery: all living members call it between steps with the same mask and the same, larger `generation` (from 1);
   * results alive and operations begun are dropped, whatever state they are in.
   */
  setActive(active: readonly boolean[], generation: number): void

  /** Counts the tokens for each member, node and expert. Local; never waits. @throws ExpertBufferError SY_EP_BAD_EXPERT */
  layout(routing: Routing): DispatchLayout

  // Normal: notify → send → receive (the hook of send) → sendCombine → receive.

  /**
   * Exchanges exact counts. `worstCase`: the result shows this many rows whatever arrives, so that its shape needs no
   * count on the host; counts are still in the handle.
   * @throws ExpertBufferError SY_EP_TOO_MANY_RESULTS, SY_EP_TOO_MANY_TOKENS, SY_EP_RECEIVES_TOO_MUCH
   */
  notify(tag: CollectiveTag, routing: Routing, options?: { worstCase?: number }): Step<NormalHandle>

  /** Another dispatch of the same tokens, slots and weights as `handle`, dead or alive, without counting again. */
  renotify(tag: CollectiveTag, handle: NormalHandle): Step<NormalHandle>

  /** Sends the rows: x [tokens, hidden]. What a ring does not take yet is sent by the hook. */
  send(tag: CollectiveTag, handle: NormalHandle, x: Payload, options?: Ordered): Step<Hook<NormalReceived>>

  /** notify, send and receive in one. */
  dispatch(
    tag: CollectiveTag,
    routing: Routing,
    x: Payload,
    options?: Ordered & { worstCase?: number },
  ): Step<Finished<NormalReceived>>

  /**
   * Sends partial rows back. `partials` f32 [received, hidden]: for each received row the weighted sum over the experts
   * here; leave it out when they lie in the result's own `partials`.
   * The hook gives out f32 [tokens, hidden] = Σ of the members' partial rows, added in f32 in ascending member order with
   * no weighting; zeros for tokens that went nowhere.
   */
  sendCombine(
    tag: CollectiveTag,
    handle: NormalHandle,
    out: Operand,
    options?: Ordered & { partials?: Operand },
  ): Step<Hook<Operand>>

  // Low-latency: send → receive (hook) → sendCombine → receive (hook).

  /** @throws ExpertBufferError SY_EP_TOO_MANY_RESULTS, SY_EP_TOO_MANY_TOKENS (more tokens than slots) */
  sendLowLatency(tag: CollectiveTag, routing: Routing, x: Payload, options?: Ordered): Step<Hook<LowLatencyReceived>>

  /**
   * Reduce 'sender': each member adds its weighted expert rows in ascending slot order (as Ops.experts rounds) and sends
   * one row a token; the origin adds members in ascending order: the bits of a normal combine on equal wires.
   * 'origin': every expert row travels and the origin adds weighted rows in ascending slot order.
   */
  sendCombineLowLatency(
    tag: CollectiveTag,
    handle: DispatchHandle,
    rows: ExpertRows,
    out: Operand,
    options?: Ordered,
  ): Step<Hook<Operand>>

  /** Gives a result up without a combine; all members do. */
  release(tag: CollectiveTag, handle: DispatchHandle): Step<void>
}
