// Drawing of tokens: a scan of every row, then a draw.
import { Unreachable } from '../../../config/errors.js'
import type { Ops } from '../../ops.js'
import type { CudaKernels } from '../kernels.js'
import { field, kernelOf } from './operands.js'

const SPLITS = 8
const THREADS = 512
/** Masses are added in 64 bits. */
const MOST_TOKENS = 2 ** 20
/** A Scan and a Candidate are 16 bytes each, kept for 8 parts of a row; and a counter. */
const WORK_BYTES = { scan: 16 * SPLITS, candidate: 16 * SPLITS, counter: 4 } as const

export const sampleOps = (d: CudaKernels): Pick<Ops, 'sample'> => ({
  sample({ out, logits, params, vocab, logprob }) {
    if (vocab > MOST_TOKENS) throw new Unreachable(`a vocabulary of ${vocab}, but the kernel draws from ${MOST_TOKENS}`)
    const [o, l, p] = [field(d, out), field(d, logits, vocab), field(d, params, 8)]
    const lp = logprob && field(d, logprob)
    const fields = [o, l, p, ...(lp ? [lp] : [])]
    const capacity = 2 ** Math.ceil(Math.log2(Math.max(1, Math.min(...fields.map(f => f.capacity)))))
    const work = (part: keyof typeof WORK_BYTES) =>
      d.workspace(WORK_BYTES[part] * capacity, `sample.${part}.${capacity}`)
    const [scans, candidates, arrived] = [work('scan'), work('candidate'), work('counter')]
    const vectors = l.address % 16 === 0 && l.stride % 4 === 0 && vocab % 4 === 0
    const scan = d
      .kernel('sample.cu', 'sample_scan')
      .bind(['u64', 'u64', 'i32', 'i32', 'u64'], [scans, l.address, vocab, vectors ? 1 : 0, l.stride], {
        programmatic: true,
      })
    const draw = d
      .kernel('sample.cu', 'sample_draw')
      .bind(
        ['u64', 'u64', 'u64', 'u64', 'u64', 'u64', 'u64', 'i32', 'u64', 'u64', 'u64', 'u64'],
        [
          ...[o.address, lp?.address ?? 0, scans, candidates, arrived, l.address, p.address, vocab],
          ...[o.stride, lp?.stride ?? 0, l.stride, p.stride],
        ],
        { programmatic: true },
      )
    return kernelOf(fields, rows => {
      scan.launch([SPLITS, rows, 1], THREADS)
      draw.launch([SPLITS, rows, 1], THREADS)
    })
  },
})
