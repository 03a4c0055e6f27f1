// One rank's side of expert parallelism over peer-mapped memory: its region on its GPU, and the launches of dispatch and combine. Nothing
// here waits or knows of steps; counts stay on the device until somebody asks for them.
import { Unreachable } from '../../config/errors.js'
import type { CudaContext } from '../../device/cuda/context.js'
import { PinnedLender } from '../../device/cuda/host-memory.js'
import type { StreamKernels } from '../../device/cuda/kernels.js'
import { type MemorySpan, u8View } from '../../device/memory.js'
import { type ExpertBufferConfig, wireOf } from '../expert-buffer-config.js'
import { meaningfulBytes } from '../wire/codec.js'
import type { WireDtype, WireFormat } from '../wire/format.js'
import { type Area, groupRecord, layOutRegion, MAX_BACK_PARTS, memberTable, type Region, STATE } from './region.js'
import { notifySharedBytes, slotsSharedBytes } from './shared-memory.js'

const NORMAL = 'ep_normal_sm90.cu'
const SLOTS = 'ep_slots_sm90.cu'
const BACK = 'ep_back_sm90.cu'
const ROWS = 'ep_rows_sm90.cu'

/** All that a rank may launch. Loaded at start: the driver may wait for running kernels when it loads, and they for peers. */
const KERNELS: Readonly<Record<string, readonly string[]>> = {
  [NORMAL]: [
    ...['ep_notify', 'ep_dispatch_copy', 'ep_dispatch_fp8_bf16', 'ep_dispatch_fp8_f32', 'ep_dispatch_expand'],
    ...['ep_reduce_bf16_bf16', 'ep_reduce_f32_f32', 'ep_combine_bf16_bf16', 'ep_combine_bf16_f32'],
    ...['ep_combine_f32_f32', 'ep_combine_local_bf16_bf16', 'ep_meet', 'ep_barrier', 'ep_copy'],
  ],
  [SLOTS]: ['ep_slots_copy', 'ep_slots_fp8_bf16', 'ep_slots_fp8_f32'],
  [BACK]: ['ep_back_bf16_bf16_bf16', 'ep_back_bf16_bf16_f32', 'ep_back_f32_bf16_f32', 'ep_back_f32_f32_f32'],
  [ROWS]: [
    ...['f32', 'bf16'].flatMap(from => ['f32', 'bf16', 'fp8'].map(to => `ep_encode_${from}_${to}`)),
    ...['f32', 'bf16', 'fp8'].map(wire => `ep_decode_${wire}`),
  ],
}

/** Rows in device memory: address, and distance between rows in elements of `dtype` ('bytes': in bytes). */
export interface DeviceRows {
  readonly address: number
  readonly stride: number
}

/** Ids (i32) and weights (f32) of a rank's tokens in device memory, strides in elements. */
export interface DeviceRouting {
  readonly tokens: number
  readonly ids: DeviceRows
  readonly weights: DeviceRows
}

/** `wire`: rows as they travel, stride in bytes; bf16 and f32 rows are quantised on the way (fp8 wire), stride in elements. */
export interface DispatchRows extends DeviceRows {
  readonly kind: 'wire' | 'bf16' | 'f32'
}

export interface Expansion {
  /** The experts' segments, rows as they travel; `stride` in bytes. */
  readonly to: DeviceRows
  readonly rows: number
  /** Blocks that send to peers; default: a quarter of `sms`. */
  readonly senders?: number
}

/** Queues a launch for the tokens it was bound for, or `of` another number of them. */
export interface LaunchTokens {
  (): void
  of(tokens: number): void
}

const forTokens = (tokens: number, launch: (tokens: number) => void): LaunchTokens =>
  Object.assign(() => launch(tokens), { of: launch })

export interface LowLatencyLaunch {
  /** SMs to use; default: the rank's. */
  readonly sms?: number
  /** The launch may begin while the kernel before it ends; not where ranks share a GPU: blocks that wait would take others' places. */
  readonly programmatic?: boolean
}

export interface PeerFault {
  readonly phase: string
  readonly peer: number
  readonly parity: number
  readonly epoch: number
  readonly seen: number
  readonly place: number
}

const PHASES = [
  '',
  'counts',
  'rows of dispatch',
  'a row of dispatch',
  'partial rows',
  'counts of slots',
  'a slot',
  'free slots',
  'a row of combine',
  'release',
]

/** Small pieces of memory that is pinned once: pages of small buffers could be pinned twice, for two owners. */
const faultLenders = new WeakMap<StreamKernels, PinnedLender>()
function faultLender(kernels: StreamKernels): PinnedLender {
  const known = faultLenders.get(kernels) ?? new PinnedLender(1 << 20)
  faultLenders.set(kernels, known)
  return known
}

export interface PeerRankOptions {
  readonly context: CudaContext
  readonly kernels: StreamKernels
  readonly config: ExpertBufferConfig
  readonly member: number
  /** Blocks that a kernel which waits may have: all SMs, or a share of them where ranks share a GPU. */
  readonly sms?: number
  readonly timeoutMs?: number
  /** Where the region lies: `region.bytes` of zeroed memory that somebody else gives back. Left out: taken here. */
  readonly base?: number
  /** Zeroed memory of the host for a fault record. Left out: taken here, and pinned as long as the kernels live. */
  readonly fault?: MemorySpan
}

/** Of a fault record, which kernels write and the host reads. */
export const FAULT_RECORD_BYTES = 64

export class PeerRank implements Disposable {
  readonly context: CudaContext
  readonly kernels: StreamKernels
  readonly config: ExpertBufferConfig
  readonly member: number
  readonly size: number
  readonly region: Region
  /** Where the region begins. */
  readonly base: number
  readonly sms: number
  readonly #timeoutMs: number
  readonly #fault: { readonly words: Int32Array; readonly address: number }
  readonly #group: number
  readonly #taken: readonly number[]
  #bases: readonly number[] = []
  #active: readonly boolean[]

  /** Takes and zeroes the region. `connect` must follow before anything is launched. */
  constructor({ context, kernels, config, member, sms, timeoutMs = 10_000, base, fault }: PeerRankOptions) {
    this.context = context
    this.kernels = kernels
    this.config = config
    this.member = member
    this.size = config.expertsOfMember.length
    this.region = layOutRegion(config)
    this.sms = sms ?? kernels.properties.sms
    this.#timeoutMs = timeoutMs
    this.#active = config.expertsOfMember.map(() => true)
    context.makeCurrent()
    for (const [file, names] of Object.entries(KERNELS)) for (const name of names) kernels.kernel(file, name)
    this.base = base ?? context.allocate(this.region.bytes, 'exchange region of expert parallelism')
    this.#group = context.allocate(2048, 'record of an expert-parallel group')
    this.#taken = base === undefined ? [this.base, this.#group] : [this.#group]
    const span = fault ?? faultLender(kernels).lend(FAULT_RECORD_BYTES, 'fault record')
    this.#fault = {
      words: new Int32Array(u8View(span).buffer, span.byteOffset, 8),
      address: kernels.addressOf(span),
    }
    context.upload(this.base + this.region.memberOfAt, memberTable(config))
  }

  /** @param bases of all members' regions, on GPUs that this one reaches */
  connect(bases: readonly number[]): void {
    this.#bases = bases
    this.#writeGroup()
  }

  /**
   * For recovery, with nothing running on this rank's stream: members that are false are dead. Epochs begin at `generation` · 2^20, so that
   * words of operations that were dropped count as old.
   */
  setActive(active: readonly boolean[], generation: number): void {
    this.#active = active
    this.#writeGroup()
    const start = generation * 2 ** 20
    const { stateAt } = this.region
    this.context.upload(this.base + stateAt, Int32Array.of(start, start, start, start))
    for (const parity of [0, 1]) this.context.upload(this.at('slotDone', parity), new Int32Array(this.size).fill(start))
  }

  #writeGroup(): void {
    const { config, region, member } = this
    const record = { config, region, member, bases: this.#bases, active: this.#active, timeoutMs: this.#timeoutMs }
    this.context.upload(this.#group, groupRecord({ ...record, fault: this.#fault.address }))
  }

  /** Gives back what it has taken; no peer may be using them. */
  [Symbol.dispose](): void {
    for (const address of this.#taken) this.context.release(address)
  }

  at(area: Area, parity: number): number {
    return this.base + this.region.at[area][parity]!
  }

  /** What a wait that took too long left; null while all is well. */
  get fault(): PeerFault | null {
    const [phase, peer, parity, epoch, seen, place] = this.#fault.words as unknown as number[]
    if (phase === 0) return null
    return {
      phase: PHASES[phase!] ?? String(phase),
      peer: peer!,
      parity: parity!,
      epoch: epoch! >>> 0,
      seen: seen! >>> 0,
      place: place!,
    }
  }

  /** Forgets a fault; with nothing running. */
  clearFault(): void {
    this.#fault.words.fill(0)
    this.context.upload(this.base + this.region.stateAt + 4 * STATE.poison, new Int32Array(1))
  }

  /** i32 words of an area; waits for nothing, so the stream must be done. */
  read(area: Area, parity: number, words: number): Int32Array {
    const out = new Int32Array(words)
    this.context.makeCurrent()
    this.context.download(out, this.at(area, parity))
    return out
  }

  /** Counts of both sides. `alignment`: rows that experts' segments are padded to; tiles (int4) of at most `tileRows`, and their number, where asked. */
  bindNotify(
    parity: number,
    routing: DeviceRouting,
    {
      alignment = 1,
      tiles = 0,
      tileCount = 0,
      tileRows = 128,
    }: { alignment?: number; tiles?: number; tileCount?: number; tileRows?: number } = {},
  ): LaunchTokens {
    const { ids, tokens } = routing
    const args = this.kernels
      .kernel(NORMAL, 'ep_notify')
      .bind(
        ['u64', 'i32', 'u64', 'i32', 'i32', 'i32', 'u64', 'u64', 'i32'],
        [this.#group, parity, ids.address, ids.stride, tokens, alignment, tiles, tileCount, tileRows],
      )
    return forTokens(tokens, now => {
      args.set(4, now)
      args.launch([1, 1, 1], 1024, notifySharedBytes(this.config, now))
    })
  }

  bindDispatch(
    parity: number,
    routing: DeviceRouting,
    x: DispatchRows,
    { sms = this.sms, expand }: { sms?: number; expand?: Expansion } = {},
  ): LaunchTokens {
    const { dispatchWire } = this.config.normal!
    const { args: head, pieces } = this.#rowArguments(x, dispatchWire)
    const tail = this.#choices(routing)
    if (expand) {
      if (x.kind !== 'wire') throw new Unreachable('rows that are expanded are sent as they are')
      const args = this.kernels
        .kernel(NORMAL, 'ep_dispatch_expand')
        .bind(
          ['u64', 'i32', 'u64', 'u64', 'i32', ...CHOICES, 'i32', 'u64', 'u64', 'i32'],
          [
            ...[this.#group, parity, ...head, ...tail],
            ...[this.size === 1 ? 0 : (expand.senders ?? Math.max(1, sms >> 2)), expand.to.address, expand.to.stride],
            expand.rows,
          ],
        )
      return forTokens(routing.tokens, now => {
        args.set(9, now)
        args.launch([sms, 1, 1], 1024)
      })
    }
    if (x.kind === 'wire') {
      const args = this.kernels
        .kernel(NORMAL, 'ep_dispatch_copy')
        .bind(['u64', 'i32', 'u64', 'u64', 'i32', ...CHOICES], [this.#group, parity, ...head, ...tail])
      return forTokens(routing.tokens, now => {
        args.set(9, now)
        args.launch([sms, 1, 1], 1024)
      })
    }
    const args = this.kernels
      .kernel(NORMAL, `ep_dispatch_fp8_${x.kind}`)
      .bind(['u64', 'i32', 'u64', 'u64', 'i32', 'i32', ...CHOICES], [this.#group, parity, ...head, ...tail])
    return forTokens(routing.tokens, now => {
      args.set(10, now)
      args.launch([sms, 1, 1], 1024, 32 * Math.ceil(pieces / 8) * 4)
    })
  }

  /** Partial rows of what was received, from expert rows at the places that an expanding dispatch gave. */
  bindReduce(parity: number, y: DeviceRows, { sms = this.sms, skipOwn = false } = {}): () => void {
    const wire = this.config.normal!.combineWire
    const args = this.kernels
      .kernel(NORMAL, `ep_reduce_${wire}_${wire}`)
      .bind(
        ['u64', 'i32', 'u64', 'u64', 'i32', 'i32'],
        [this.#group, parity, y.address, y.stride, this.config.hidden, skipOwn ? 1 : 0],
      )
    return () => args.launch([2 * sms, 1, 1], 512)
  }

  /** Adds the members' partial rows. `own`: expert rows from which the own part is made, then not read from partials. */
  bindCombine(
    parity: number,
    tokens: number,
    out: DeviceRows & { readonly dtype: 'bf16' | 'f32' },
    { sms = this.sms, own }: { sms?: number; own?: DeviceRows } = {},
  ): LaunchTokens {
    const wire = this.config.normal!.combineWire
    const args = this.kernels
      .kernel(NORMAL, `ep_combine_${own ? 'local_' : ''}${wire}_${out.dtype}`)
      .bind(
        ['u64', 'i32', 'u64', 'u64', 'i32', 'i32', 'u64', 'u64'],
        [
          ...[this.#group, parity, out.address, out.stride, this.config.hidden, tokens],
          ...[own?.address ?? 0, own?.stride ?? 0],
        ],
      )
    return forTokens(tokens, now => {
      args.set(5, now)
      args.launch([sms, 1, 1], 512)
    })
  }

  /** Of this rank: the word that counts low-latency operations of a parity. */
  #slotEpoch(parity: number): number {
    return this.base + this.region.stateAt + 4 * (STATE.slotEpoch + parity)
  }

  /** @param phases 1 sends, 2 receives, 3 both in one kernel */
  bindSlots(
    parity: number,
    phases: number,
    routing: DeviceRouting,
    x: DispatchRows,
    { sms = this.sms, programmatic = false }: LowLatencyLaunch = {},
  ): LaunchTokens {
    const { dispatchWire } = this.config.lowLatency!
    const { topK } = this.config
    const { args: head, pieces } = this.#rowArguments(x, dispatchWire)
    const name = x.kind === 'wire' ? 'ep_slots_copy' : `ep_slots_fp8_${x.kind}`
    const row = ['u64', 'u64', 'i32', ...(x.kind === 'wire' ? [] : (['i32'] as const))] as const
    const layout = ['u64', 'i32', 'i32', 'u64', 'u64', 'i32', ...row] as const
    const state = [this.#slotEpoch(parity), this.at('slotDone', parity)]
    const args = this.kernels
      .kernel(SLOTS, name)
      .bind(
        [...layout, ...CHOICES],
        [this.#group, parity, phases, ...state, topK, ...head, ...this.#choices(routing)],
        { programmatic },
      )
    return forTokens(routing.tokens, now => {
      const blocks = Math.min(sms, Math.max(now, this.region.mostLocalExperts, 1))
      args.set(layout.length + 4, now)
      args.launch([blocks, 1, 1], threadsFor(pieces), slotsSharedBytes(this.config, now))
    })
  }

  /** @param kind 0: expert rows, summed here; 1: rows by slot that are summed; 2: one row a choice */
  bindBack(
    parity: number,
    phases: number,
    kind: 0 | 1 | 2,
    y: DeviceRows & { readonly dtype?: 'bf16' | 'f32' },
    routing: DeviceRouting,
    out: DeviceRows & { readonly dtype: 'bf16' | 'f32' },
    { sms = this.sms, programmatic = false }: LowLatencyLaunch = {},
  ): LaunchTokens {
    const { combineWire: wire, slots } = this.config.lowLatency!
    const { hidden } = this.config
    // Equal on all members: flags are raised and awaited part by part.
    const pieces = hidden / (wire === 'f32' ? 4 : 8)
    const parts = Math.min(MAX_BACK_PARTS, Math.ceil(pieces / (BACK_THREADS - 32)))
    // A warp more than there are columns for, to raise flags.
    const threads = Math.min(BACK_THREADS, Math.ceil(pieces / parts / 32) * 32 + 32)
    // Ranks that share a GPU leave each other whole SMs: blocks of another kernel may need all of one.
    const perSm = sms < this.kernels.properties.sms ? 1 : BACK_BLOCKS
    const blocks = Math.min(perSm * sms, Math.max(1, this.size * slots * parts))
    const args = this.kernels
      .kernel(BACK, `ep_back_${y.dtype ?? 'bf16'}_${wire}_${out.dtype}`)
      .bind(
        ['u64', 'i32', 'i32', 'u64', 'i32', 'i32', 'u64', 'u64', 'u64', 'u64', 'i32', ...CHOICES],
        [
          ...[this.#group, parity, phases, this.#slotEpoch(parity), kind, parts],
          ...[y.address, y.stride, out.address, out.stride, hidden, ...this.#choices(routing)],
        ],
        { programmatic },
      )
    return forTokens(routing.tokens, now => {
      args.set(15, now)
      args.launch([blocks, 1, 1], threads)
    })
  }

  /** Plain rows to wire rows. */
  encode(
    from: DeviceRows & { readonly dtype: 'bf16' | 'f32' },
    to: { readonly address: number; readonly format: WireFormat },
    rows: number,
  ): void {
    if (rows === 0) return
    const { format } = to
    this.kernels
      .kernel(ROWS, `ep_encode_${from.dtype}_${format.dtype}`)
      .bind(
        ['u64', 'u64', 'u64', 'u64', 'i32', 'i32', 'i32'],
        [from.address, from.stride, to.address, format.rowBytes, rows, format.hidden, format.roundScales ? 1 : 0],
      )
      .launch([Math.min(this.sms, Math.ceil(rows / 8)), 1, 1], 256)
  }

  /** Wire rows to plain f32 rows. */
  decode(from: { readonly address: number; readonly format: WireFormat }, to: DeviceRows, rows: number): void {
    if (rows === 0) return
    const { format } = from
    this.kernels
      .kernel(ROWS, `ep_decode_${format.dtype}`)
      .bind(
        ['u64', 'u64', 'u64', 'u64', 'i32', 'i32'],
        [from.address, format.rowBytes, to.address, to.stride, rows, format.hidden],
      )
      .launch([Math.min(this.sms, Math.ceil(rows / 8)), 1, 1], 256)
  }

  /** Gives a result up; all members do. */
  bindMeet(parity: number, lowLatency: boolean): () => void {
    const args = this.kernels
      .kernel(NORMAL, 'ep_meet')
      .bind(['u64', 'i32', 'i32'], [this.#group, parity, lowLatency ? 1 : 0])
    return () => args.launch([1, 1, 1], 32)
  }

  /** All members meet `rounds` times, in one kernel. */
  bindBarrier(rounds = 1): () => void {
    const args = this.kernels.kernel(NORMAL, 'ep_barrier').bind(['u64', 'i32'], [this.#group, rounds])
    return () => args.launch([1, 1, 1], 32)
  }

  /** A copy by `sms` blocks between any two addresses: the control beside dispatch and combine. */
  bindCopy(to: number, from: number, bytes: number, sms: number): () => void {
    const args = this.kernels.kernel(NORMAL, 'ep_copy').bind(['u64', 'u64', 'u64'], [to, from, bytes / 16])
    return () => args.launch([sms, 1, 1], 1024)
  }

  #rowArguments(x: DispatchRows, wire: WireDtype): { args: number[]; pieces: number } {
    if (x.kind === 'wire') {
      const pieces = Math.ceil(meaningfulBytes(wireOf(this.config, wire)) / 16)
      return { args: [x.address, x.stride, pieces], pieces }
    }
    if (wire !== 'fp8') throw new Unreachable(`rows of ${x.kind} are not quantised to ${wire} on their way`)
    const pieces = this.config.hidden / 16
    return { args: [x.address, x.stride, pieces, this.config.roundScales ? 1 : 0], pieces }
  }

  #choices({ ids, weights, tokens }: DeviceRouting): number[] {
    return [ids.address, ids.stride, weights.address, weights.stride, tokens]
  }
}

/** Of the low-latency combine: threads of a block at most, and blocks that an SM holds at once. */
const BACK_THREADS = 256
const BACK_BLOCKS = 4

const CHOICES = ['u64', 'i32', 'u64', 'i32', 'i32'] as const

/** A thread for each piece of a row and a warp that raises flags, up to what a block holds; at least a few warps for lists and waits. */
const threadsFor = (pieces: number): number => Math.min(1024, Math.max(256, Math.ceil(pieces / 32) * 32 + 32))
