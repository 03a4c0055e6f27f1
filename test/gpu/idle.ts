// Figures of a whole GPU's memory mean something only while this process has it to itself.
import type { CudaContext } from '../../src/device/cuda/context.js'

const WATCHED_MS = 200
const LOOK_MS = 10

/** @throws when free memory moves though this process does nothing: another one uses the GPU */
export async function requireIdle(contexts: readonly CudaContext[]): Promise<void> {
  const free = () =>
    contexts.map(context => {
      context.synchronize()
      return context.memory().free
    })
  const before = free()
  for (const end = performance.now() + WATCHED_MS; performance.now() < end; ) {
    await new Promise(resolve => setTimeout(resolve, LOOK_MS))
    const moved = free().map((bytes, i) => bytes - before[i]!)
    const at = moved.findIndex(bytes => bytes !== 0)
    if (at >= 0)
      throw new Error(
        `${contexts[at]!.device} is not idle: its free memory moved by ${moved[at]} bytes while this test did nothing. Nothing can be said about memory; run it alone.`,
      )
  }
}
