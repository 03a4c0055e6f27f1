// One rank of `bench ep`: a worker thread that runs dispatches and combines in step with the others and notes when each
// began and ended. It checks every combined row, so that a figure of a wrong result cannot be printed.
import { parentPort, workerData } from 'node:worker_threads'
import {
  createWireKernels,
  type ExpertBuffer,
  type Payload,
  ShmCommunicator,
  ShmExpertBuffer,
} from '../../comm/index.js'
import { wireFormat } from '../../comm/wire/format.js'
import { wireRows } from '../../comm/wire/kernels.js'
import { Unreachable } from '../../config/errors.js'
import { f32View, u8View } from '../../device/memory.js'
import type { Operand } from '../../device/ops.js'
import { ControlBlock } from '../../runtime/control.js'
import { drive, type Step, spinPolicy } from '../../runtime/wait.js'
import { type EpLaunch, type EpMeasured, type EpWork, PHASES, type Phase } from './ep-launch.js'

/** Rounds that are not reported: until the compiler has seen what is hot. */
const WARM_UP = 16

const launch = workerData as EpLaunch
const now = (): number => performance.timeOrigin + performance.now()
const tag = (label: string) => ({ operation: -1, layer: -1, label })

const control = ControlBlock.attach(launch.control)
const world = new ShmCommunicator(control, launch.group, launch.rank)
const kernels = createWireKernels(launch.kernels)
const { hidden } = launch
const x: Operand = { span: launch.x, offset: 0, stride: hidden }
const out: Operand = { span: launch.out, offset: 0, stride: hidden }

class Work {
  readonly work: EpWork
  readonly buffer: ExpertBuffer
  readonly spans: [number, number][][] = PHASES.map(() => [])
  readonly #x: Payload = { kind: 'f32', rows: x }

  constructor(work: EpWork) {
    this.work = work
    this.buffer = new ShmExpertBuffer(work.buffer, launch.rank, { kernels })
  }

  *#timed<T>(phase: Phase, step: () => Step<T>): Step<T> {
    yield* world.barrier(tag('start'))
    const from = now()
    const result = yield* step()
    this.spans[PHASES.indexOf(phase)]!.push([from, now()])
    // What a rank does next on its own must not take the time of those that are not done.
    yield* world.barrier(tag('end'))
    return result
  }

  *round(): Step<void> {
    const { work } = this
    for (let i = 0; i < work.times; i++) {
      yield* this.#timed('barrier', () => world.barrier(tag('barrier')))
      yield* this.#timed('copy streaming', () => this.#copy(true))
      yield* this.#timed('copy cached', () => this.#copy(false))
      yield* work.mode === 'normal' ? this.#normal() : this.#lowLatency()
    }
  }

  *#copy(streaming: boolean): Step<void> {
    for (const bytes of this.work.copyBytes) {
      if (bytes === 0) continue
      if (!streaming) {
        u8View(launch.copyTo).set(u8View(launch.copyFrom).subarray(0, bytes))
        continue
      }
      const format = wireFormat('f32', bytes / 4)
      const rows = (span: typeof launch.x) => wireRows({ format, span }, 1)
      kernels.transfer({ from: rows(launch.copyFrom), to: rows(launch.copyTo), n: 1 })
    }
  }

  #routing() {
    const operand = (span: typeof launch.x): Operand => ({ span, offset: 0, stride: launch.topK })
    return { tokens: this.work.tokens, ids: operand(this.work.ids), weights: operand(this.work.weights) }
  }

  *#normal(): Step<void> {
    const { buffer } = this
    const routing = this.#routing()
    const payload = this.#x
    const { result } = yield* this.#timed('dispatch', () => buffer.dispatch(tag('dispatch'), routing, payload))
    // The experts of this benchmark give back what they get.
    const rows = result.handle.received
    if (result.x.kind !== 'f32') throw new Unreachable('a benchmark of rows that are not decoded')
    const from = f32View(result.x.rows.span)
    const to = f32View(result.partials.span)
    to.set(from.subarray(0, rows * result.partials.stride))
    yield* this.#timed('combine', function* () {
      const receive = yield* buffer.sendCombine(tag('combine'), result.handle, out)
      yield* receive()
    })
    this.#check(result.handle.layout.tokenInMember)
  }

  *#lowLatency(): Step<void> {
    const { buffer } = this
    const routing = this.#routing()
    const payload = this.#x
    const { result } = yield* this.#timed('dispatch', function* () {
      return yield* (yield* buffer.sendLowLatency(tag('dispatch'), routing, payload))()
    })
    if (result.x.kind !== 'f32') throw new Unreachable('a benchmark of rows that are not decoded')
    const rows = { kind: 'partials', rows: result.x.rows } as const
    yield* this.#timed('combine', function* () {
      const receive = yield* buffer.sendCombineLowLatency(tag('combine'), result.handle, rows, out)
      yield* receive()
    })
    this.#check(result.handle.layout.tokenInMember)
  }

  /** Every combined row is its token's row as often as members had it, to the wires' rounding. */
  #check(tokenInMember: Uint8Array): void {
    const given = f32View(launch.x)
    const got = f32View(launch.out)
    const { dispatchWire, combineWire } = this.work.buffer.config[this.work.mode]!
    const step = Math.max(
      ...[dispatchWire, combineWire].map(w => ({ f32: 2 ** -22, bf16: 2 ** -7, fp8: 0.07, int8: 0.01 })[w]),
    )
    for (let t = 0; t < this.work.tokens; t++) {
      let copies = 0
      for (let m = 0; m < launch.ranks; m++) copies += tokenInMember[t * launch.ranks + m]!
      for (let c = 0; c < hidden; c++) {
        const expected = copies * given[t * hidden + c]!
        if (!(Math.abs(got[t * hidden + c]! - expected) <= 3 * step * copies))
          throw new Unreachable(`${this.work.name}: token ${t}, column ${c} is ${got[t * hidden + c]}, not ${expected}`)
      }
    }
  }
}

function* main(): Step<EpMeasured> {
  const works = launch.works.map(work => new Work(work))
  for (let round = 0; round < WARM_UP + launch.rounds; round++) for (const work of works) yield* work.round()
  return {
    rank: launch.rank,
    kernels: kernels.name,
    spans: works.map(w => w.spans.map(s => s.slice(WARM_UP * w.work.times))),
    ringStalls: works.reduce((sum, w) => sum + w.buffer.statistics.ringStalls, 0),
  }
}

parentPort!.postMessage(
  drive(main(), spinPolicy(launch.ranks, launch.cores), () => control.throwIfAborted(launch.rank)),
)
