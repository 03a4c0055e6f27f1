// What the engine may tell attention about the step it is about to queue. Saying nothing is always right and only slower: the
// structure of the batch is then looked for on the device before every layer, and launches for prompts are made though there are none.
import type { CudaKernels } from '../kernels.js'

export interface AttentionStep {
  /** Every sequence brings one row: only decode kernels are queued. Wrong hints cost time, never correctness. */
  decodeOnly: boolean
  /** Counts steps, from 1. While it stays the same, rows and their inputs are taken to be the same; 0 promises nothing. */
  generation: number
}

const steps = new WeakMap<CudaKernels, AttentionStep>()

/** The step of a stream's kernels; fields are set before a step is queued or captured. */
export function attentionStep(d: CudaKernels): AttentionStep {
  let step = steps.get(d)
  if (step === undefined) {
    step = { decodeOnly: false, generation: 0 }
    steps.set(d, step)
  }
  return step
}
