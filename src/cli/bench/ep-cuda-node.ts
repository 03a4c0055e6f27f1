// The ranks of `bench ep --device cuda` and of its tests: each on a GPU with a stream of its own, all driven by this thread. Whatever
// waits for peers is launched on all ranks before anything is waited for here.
import type { ExpertBufferConfig } from '../../comm/index.js'
import { type PeerFault, PeerRank } from '../../comm/peer/index.js'
import { type CudaDevice, createCudaDevice } from '../../device/cuda/device.js'
import { DriverEvent } from '../../device/cuda/event.js'
import { medianOf } from '../../device/cuda/measure.js'

export interface NodeRank {
  readonly peer: PeerRank
  readonly device: CudaDevice
  lend(bytes: number): number
  put(view: ArrayBufferView): number
  get<T extends ArrayBufferView>(view: T, address: number): T
}

export const describeFault = (member: number, f: PeerFault): string =>
  `rank ${member} waited in vain for ${f.phase} of rank ${f.peer} (place ${f.place}, operation ${f.epoch}, seen ${f.seen})`

/** A meeting takes some 1.5 µs over NVLink. */
const MEETINGS = 60

export class PeerNode implements Disposable {
  readonly ranks: readonly NodeRank[]
  readonly #taken: { device: CudaDevice; address: number }[] = []

  /** @param gpus ordinal of each member's GPU */
  constructor(config: ExpertBufferConfig, gpus: readonly number[], timeoutMs = 5000) {
    const sharing = (gpu: number): number => gpus.filter(g => g === gpu).length
    this.ranks = gpus.map((gpu, member) => {
      const device = createCudaDevice({ ordinal: gpu })
      const { context, kernels } = device
      for (const other of new Set(gpus))
        if (other !== gpu && !context.enablePeer(other))
          throw new Error(`GPU ${gpu} cannot reach the memory of GPU ${other}`)
      const sms = Math.floor(kernels.properties.sms / sharing(gpu))
      const peer = new PeerRank({ context, kernels, config, member, sms, timeoutMs })
      const lend = (bytes: number): number => {
        const address = context.allocate(Math.max(bytes, 16), 'a benchmark')
        this.#taken.push({ device, address })
        return address
      }
      return {
        peer,
        device,
        lend,
        put(view) {
          const address = lend(view.byteLength)
          context.upload(address, view)
          return address
        },
        get(view, address) {
          context.makeCurrent()
          context.download(view, address)
          return view
        },
      }
    })
    for (const { peer } of this.ranks) peer.connect(this.ranks.map(r => r.peer.base))
  }

  /** Queues on every rank, with its GPU current. */
  each<T>(queue: (rank: NodeRank, member: number) => T): T[] {
    return this.ranks.map((rank, member) => {
      rank.device.context.makeCurrent()
      return queue(rank, member)
    })
  }

  /** Waits for all ranks. @throws when one of them waited for another in vain */
  settle(): void {
    this.each(r => r.device.kernels.stream.synchronize())
    const faults = this.ranks.flatMap(({ peer }, m) => (peer.fault ? [describeFault(m, peer.fault)] : []))
    if (faults.length > 0) throw new Error(faults.join('; '))
  }

  /** Launches on all ranks and waits for all. */
  run(queue: (rank: NodeRank, member: number) => void): void {
    this.each(queue)
    this.settle()
  }

  /**
   * Microseconds of `parts` in a row, each from a meeting of all ranks to its end, the slowest rank's; medians over `times`.
   * @param parts one launch function a rank; they are called between all ranks' clocks, so one may launch on the others too
   */
  time(parts: readonly (readonly (() => void)[])[], times: number, warmUp = 3): number[] {
    // Long enough that all ranks' launches are queued before the first part begins.
    const meet = this.each(r => r.peer.bindBarrier(MEETINGS))
    const events = this.each(({ device }) =>
      Array.from({ length: times }, () =>
        parts.map(() => [new DriverEvent(device.context, true), new DriverEvent(device.context, true)] as const),
      ),
    )
    for (let i = -warmUp; i < times; i++) {
      parts.forEach((part, p) => {
        const clock = (m: number, which: 0 | 1) => events[m]![Math.max(i, 0)]![p]![which]
        this.each(({ device }, m) => {
          meet[m]!()
          clock(m, 0).record(device.kernels.stream)
        })
        this.each((_, m) => part[m]!())
        this.each(({ device }, m) => clock(m, 1).record(device.kernels.stream))
      })
      if (i % 4 === 3) this.settle()
    }
    this.settle()
    const found = parts.map((_, p) => {
      const each = Array.from({ length: times }, (_, i) =>
        Math.max(
          ...this.each((_r, m) => {
            const [begin, end] = events[m]![i]![p]!
            return end.elapsedSince(begin) * 1000
          }),
        ),
      )
      return medianOf(each.sort((a, b) => a - b))
    })
    this.each((_, m) => {
      for (const [begin, end] of events[m]!.flat()) {
        begin[Symbol.dispose]()
        end[Symbol.dispose]()
      }
    })
    return found
  }

  /** Microseconds of one run of `part`, `inner` of which lie in one graph on each rank; median over `times`. */
  timeInGraph(part: readonly ((i: number) => void)[], inner: number, times: number): number {
    for (let i = 0; i < 2; i++) this.each((_, m) => part[m]!(i))
    this.settle()
    const graphs = this.each(({ device }, m) =>
      device.kernels.stream.capture(() => {
        for (let i = 0; i < inner; i++) part[m]!(i)
      }),
    )
    const [us] = this.time([graphs.map(g => () => g.launch())], times)
    for (const g of graphs) g[Symbol.dispose]()
    return us! / inner
  }

  [Symbol.dispose](): void {
    for (const { device, address } of this.#taken) {
      device.context.makeCurrent()
      device.context.release(address)
    }
    for (const { device, peer } of this.ranks) {
      peer[Symbol.dispose]()
      device.context.makeCurrent()
      device[Symbol.dispose]()
    }
  }
}
