// A captured graph, instantiated once and launched often. It owns the executable graph; memory that its nodes use belongs to
// whoever captured it and must outlive it.
import type { CudaContext } from './context.js'
import type { CudaGraph, CudaStream } from './types.js'

export class DriverGraph implements CudaGraph {
  readonly nodes: number
  readonly #context: CudaContext
  readonly #executable: number
  readonly #stream: CudaStream

  /** Takes the captured `graph` over. */
  constructor(context: CudaContext, graph: number, stream: CudaStream) {
    this.#context = context
    this.#stream = stream
    const { driver } = context
    const count: (number | null)[] = [null]
    driver.call('cuGraphGetNodes', graph, 0, count)
    this.nodes = Number(count[0])
    this.#executable = driver.get('cuGraphInstantiateWithFlags', graph, 0)
    driver.call('cuGraphDestroy', graph)
    // The first launch then finds it on the GPU.
    driver.call('cuGraphUpload', this.#executable, stream.handle)
  }

  launch(stream: CudaStream = this.#stream): void {
    this.#context.driver.call('cuGraphLaunch', this.#executable, stream.handle)
  }

  [Symbol.dispose](): void {
    this.#context.driver.release('cuGraphExecDestroy', this.#executable)
  }
}
