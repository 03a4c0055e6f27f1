// Which batch sizes decode steps are captured for, and which of them a batch runs in. Pure.
// Names and the shape of the default list are SGLang's (--cuda-graph-bs, --cuda-graph-max-bs, --disable-cuda-graph).
import type { EngineFlags } from '../config/flags.js'

/** Graphs of larger batches save little: their kernels take longer than their launches. */
const LARGEST_BY_DEFAULT = 256
const STEP = 8

/** Ascending; none when graphs are off. */
export function graphBatchesOf(
  flags: Pick<EngineFlags, 'disableCudaGraph' | 'cudaGraphMaxBs' | 'cudaGraphBs' | 'maxRunningRequests'>,
): number[] {
  if (flags.disableCudaGraph) return []
  const running = flags.maxRunningRequests
  const most = Math.min(running, flags.cudaGraphMaxBs ?? LARGEST_BY_DEFAULT)
  const asked = flags.cudaGraphBs?.split(',').map(Number)
  const usual = [1, 2, 4, ...Array.from({ length: Math.ceil(most / STEP) }, (_, i) => Math.min((i + 1) * STEP, most))]
  const sizes = (asked ?? usual).filter(size => size >= 1 && size <= (asked ? running : most))
  return [...new Set(sizes)].sort((a, b) => a - b)
}

/** The smallest captured batch that holds `rows` rows; null when none does. */
export const graphBatchFor = (rows: number, batches: readonly number[]): number | null =>
  rows === 0 ? null : (batches.find(size => size >= rows) ?? null)
