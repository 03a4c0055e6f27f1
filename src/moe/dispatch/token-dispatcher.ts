// Dispatchers over an ExpertBuffer: normal and low-latency behind the same four stages. Each is a checked stage machine
// (source of the stages: SGLang token_dispatcher: dispatch_a/b, combine_a/b); a stage out of order is a bug that is named.
import type {
  CollectiveTag,
  ExpertBuffer,
  Hook,
  LowLatencyReceived,
  NormalHandle,
  NormalReceived,
} from '../../comm/index.js'
import { Unreachable } from '../../config/errors.js'
import type { Operand } from '../../device/ops.js'
import type { ExpertDispatcher, ReceivedTokens } from '../../program/index.js'
import type { Step } from '../../runtime/wait.js'
import type { TrafficObserver } from '../../trace/index.js'
import { DispatchTraffic } from './traffic.js'

type Tokens = Parameters<ExpertDispatcher['send']>[1]

const STAGES = ['initial', 'sent', 'received', 'results sent'] as const
type Stage = (typeof STAGES)[number]

/** Where in a dispatch and its combine a dispatcher is. */
class StageGuard {
  #at: Stage = 'initial'

  enter(from: Stage, to: Stage): void {
    if (this.#at !== from)
      throw new Unreachable(`a dispatcher is ${this.#at} and was asked to go from ${from} to ${to}`)
    this.#at = to
  }
}

const plainRows = (x: NormalReceived['x']): Operand => {
  if (x.kind !== 'f32') throw new Unreachable('dispatchers read decoded rows; the buffer delivers wire rows')
  return x.rows
}

/** Exact counts first, then rows in (source rank, source token) order. */
export class NormalDispatcher implements ExpertDispatcher {
  readonly #buffer: ExpertBuffer
  readonly #stage = new StageGuard()
  #handle: NormalHandle | null = null
  #receive: Hook<NormalReceived> | null = null
  #receiveResults: Hook<Operand> | null = null
  readonly #traffic: DispatchTraffic | null

  /** @param trace hears what moves between ranks */
  constructor(buffer: ExpertBuffer, trace: TrafficObserver | null = null) {
    this.#buffer = buffer
    const { normal } = buffer.config
    this.#traffic = trace && normal ? new DispatchTraffic(buffer, normal, trace) : null
  }

  *send(tag: CollectiveTag, { own, ofRank }: Tokens, x: Operand, ids: Operand, weights: Operand): Step<void> {
    this.#stage.enter('initial', 'sent')
    this.#handle = yield* this.#buffer.notify(tag, { tokens: own, ids, weights, tokensOfMember: ofRank })
    this.#traffic?.dispatched(this.#handle.layout)
    this.#receive = yield* this.#buffer.send(tag, this.#handle, { kind: 'f32', rows: x })
  }

  *receive(): Step<ReceivedTokens> {
    this.#stage.enter('sent', 'received')
    const { result, done } = yield* this.#receive!()
    if (!done.done) yield* done.wait()
    const { ids, weights, partials, handle } = result
    const { member } = this.#buffer
    this.#traffic?.arrived(handle.received, handle.sourceStart[member + 1]! - handle.sourceStart[member]!)
    return { rows: handle.received, x: plainRows(result.x), ids, weights, partials }
  }

  *sendResults(tag: CollectiveTag, partials: Operand, out: Operand): Step<void> {
    this.#stage.enter('received', 'results sent')
    this.#receiveResults = yield* this.#buffer.sendCombine(tag, this.#handle!, out, { partials })
    this.#traffic?.resultsSent()
  }

  *receiveResults(): Step<void> {
    this.#stage.enter('results sent', 'initial')
    const { done } = yield* this.#receiveResults!()
    if (!done.done) yield* done.wait()
    this.#traffic?.resultsArrived()
  }
}

/** Fixed slots, no counts to wait for. Experts add their weighted rows before they are sent (reduce 'sender'). */
export class LowLatencyDispatcher implements ExpertDispatcher {
  readonly #buffer: ExpertBuffer
  readonly #stage = new StageGuard()
  #receive: Hook<LowLatencyReceived> | null = null
  #received: LowLatencyReceived | null = null
  #receiveResults: Hook<Operand> | null = null
  readonly #traffic: DispatchTraffic | null

  /** @param trace hears what moves between ranks */
  constructor(buffer: ExpertBuffer, trace: TrafficObserver | null = null) {
    this.#buffer = buffer
    const { lowLatency } = buffer.config
    this.#traffic = trace && lowLatency ? new DispatchTraffic(buffer, lowLatency, trace) : null
  }

  *send(tag: CollectiveTag, { own, ofRank }: Tokens, x: Operand, ids: Operand, weights: Operand): Step<void> {
    this.#stage.enter('initial', 'sent')
    const routing = { tokens: own, ids, weights, tokensOfMember: ofRank }
    this.#receive = yield* this.#buffer.sendLowLatency(tag, routing, { kind: 'f32', rows: x })
    if (this.#traffic?.active) this.#traffic.dispatched(this.#buffer.layout(routing))
  }

  *receive(): Step<ReceivedTokens> {
    this.#stage.enter('sent', 'received')
    const { result, done } = yield* this.#receive!()
    if (!done.done) yield* done.wait()
    this.#received = result
    const { ids, weights, capacity, tokensPerSource } = result
    this.#traffic?.arrived(sumOf(tokensPerSource), tokensPerSource[this.#buffer.member]!)
    return { rows: capacity, x: plainRows(result.x), ids, weights, partials: null }
  }

  *sendResults(tag: CollectiveTag, partials: Operand, out: Operand): Step<void> {
    this.#stage.enter('received', 'results sent')
    const rows = { kind: 'partials' as const, rows: partials }
    this.#receiveResults = yield* this.#buffer.sendCombineLowLatency(tag, this.#received!.handle, rows, out)
    this.#traffic?.resultsSent()
  }

  *receiveResults(): Step<void> {
    this.#stage.enter('results sent', 'initial')
    const { done } = yield* this.#receiveResults!()
    if (!done.done) yield* done.wait()
    this.#traffic?.resultsArrived()
  }
}

function sumOf(counts: Int32Array): number {
  let sum = 0
  for (let i = 0; i < counts.length; i++) sum += counts[i]!
  return sum
}
