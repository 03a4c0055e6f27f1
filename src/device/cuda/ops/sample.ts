// Drawing of tokens: a scan of every row, bins and a list of what limits may leave, then a draw (kernels/cuda/sample.cu).
import { Unreachable } from '../../../config/errors.js'
import type { Ops } from '../../ops.js'
import type { CudaKernels } from '../kernels.js'
import { field, kernelOf } from './operands.js'

/** Parts of a row that are scanned by a block each; always as many, so that sums do not depend on the number of rows. */
const PARTS = 32
const [SCAN_THREADS, THREADS] = [256, 512]
const [FEWEST_SPLITS, MOST_SPLITS] = [8, 64]
const [BINS, LIST] = [2048, 4096]
/** Masses are added in 64 bits. */
const MOST_TOKENS = 2 ** 20
/** Of a row: the structs of sample.cu. */
const WORK_BYTES = {
  scans: 16 * PARTS,
  states: 48,
  candidates: 16 * MOST_SPLITS,
  counts: 4 * BINS,
  masses: 8 * BINS,
  lists: 8 * LIST,
} as const

/** Blocks that share a row in kernels whose results do not depend on it: about four for each SM over all rows. */
export const splitsOf = (rows: number, sms: number): number =>
  Math.min(MOST_SPLITS, Math.max(FEWEST_SPLITS, 2 ** Math.floor(Math.log2((4 * sms) / rows))))

export const sampleOps = (d: CudaKernels): Pick<Ops, 'sample'> => ({
  sample({ out, logits, params, vocab, logprob }) {
    if (vocab > MOST_TOKENS) throw new Unreachable(`a vocabulary of ${vocab}, but the kernel draws from ${MOST_TOKENS}`)
    const [o, l, p] = [field(d, out), field(d, logits, vocab), field(d, params, 8)]
    const lp = logprob && field(d, logprob)
    const fields = [o, l, p, ...(lp ? [lp] : [])]
    const capacity = 2 ** Math.ceil(Math.log2(Math.max(1, Math.min(...fields.map(f => f.capacity)))))
    const work = (part: keyof typeof WORK_BYTES) =>
      d.workspace(WORK_BYTES[part] * capacity, `sample.${part}.${capacity}`)
    const [scans, states, candidates] = [work('scans'), work('states'), work('candidates')]
    const [counts, masses, lists] = [work('counts'), work('masses'), work('lists')]
    const vectors = l.address % 16 === 0 && l.stride % 4 === 0 && vocab % 4 === 0 ? 1 : 0
    const results = [o.address, lp?.address ?? 0]
    const sources = [scans, l.address, p.address, vocab, vectors]
    const strides = [o.stride, lp?.stride ?? 0, l.stride, p.stride]
    const overlapping = { programmatic: true }
    const of = (name: string) => d.kernel('sample.cu', name)
    const scan = of('sample_scan').bind(
      ['u64', 'u64', 'i32', 'i32', 'u64'],
      [scans, l.address, vocab, vectors, l.stride],
      overlapping,
    )
    const weigh = of('sample_weigh').bind(
      ['u64', 'u64', 'u64', 'u64', 'u64', 'u64', 'i32', 'i32', 'u64', 'u64'],
      [states, counts, masses, ...sources, l.stride, p.stride],
      overlapping,
    )
    const gather = of('sample_gather').bind(
      ['u64', 'u64', 'u64', 'u64', 'u64', 'u64', 'u64', 'i32', 'i32', 'u64', 'u64', 'u64', 'u64'],
      [...results, states, lists, ...sources, ...strides],
      overlapping,
    )
    const draw = of('sample_draw').bind(
      ['u64', 'u64', 'u64', 'u64', 'u64', 'u64', 'u64', 'i32', 'i32', 'u64', 'u64', 'u64', 'u64'],
      [...results, states, candidates, ...sources, ...strides],
      overlapping,
    )
    return kernelOf(fields, rows => {
      const splits = splitsOf(rows, d.properties.sms)
      scan.launch([PARTS, rows, 1], SCAN_THREADS)
      for (const kernel of [weigh, gather, draw]) kernel.launch([splits, rows, 1], THREADS)
    })
  },
})
