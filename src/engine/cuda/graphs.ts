// Captured decode steps: one graph a batch size. The first step of a size runs kernel by kernel, which also loads whatever the
// driver loads late; the second is captured and replayed from then on.
import type { CudaGraph, CudaStream } from '../../device/cuda/types.js'

type Seen = 'warm' | CudaGraph

export class DecodeGraphs implements Disposable {
  readonly #stream: CudaStream
  readonly #graphs = new Map<number, Seen>()

  constructor(stream: CudaStream) {
    this.#stream = stream
  }

  /** Queues `launch`, from a graph where there is one. @returns the graph that was replayed, or null */
  run(batch: number, launch: () => void): CudaGraph | null {
    const seen = this.#graphs.get(batch)
    if (seen === undefined) {
      launch()
      this.#graphs.set(batch, 'warm')
      return null
    }
    const graph = seen === 'warm' ? this.#stream.capture(launch) : seen
    if (seen === 'warm') this.#graphs.set(batch, graph)
    graph.launch()
    return graph
  }

  [Symbol.dispose](): void {
    for (const seen of this.#graphs.values()) if (seen !== 'warm') seen[Symbol.dispose]()
    this.#graphs.clear()
  }
}
