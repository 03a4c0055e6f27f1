// A figure of `bench ep --device cuda`: what it took, what it would take at least, and what others took.
import { DENSE_TFLOPS, LINK_GBS, MEMORY_GBS } from './ep-stored.js'

export interface EpCudaFigure {
  readonly what: string
  readonly shape: string
  /** Blocks, one an SM; 0 where the kernels choose. */
  readonly sms: number
  readonly us: number
  /** Bytes that the busiest direction of the busiest rank carries, and their rate; 0 where nothing crosses. */
  readonly linkBytes: number
  readonly linkGBs: number
  /** What it takes at least: the link at the rate of stores to a peer, memory at that of a copy, or products; 0 where unknown. */
  readonly limitUs: number
  readonly limit: Limit
  /** Measured with another implementation on the same kind of machine, see ep-stored.ts. */
  readonly stored?: { readonly us: number; readonly what: string }
}
export type Limit = '' | 'link' | 'memory' | 'products' | 'sum of parts'

/** Bytes and floating-point operations that one rank cannot do without. */
export interface Work {
  readonly memory?: number
  readonly flops?: number
  readonly stored?: { readonly us: number; readonly what: string } | undefined
}

function limitOf(linkBytes: number, { memory = 0, flops = 0 }: Work): { limitUs: number; limit: Limit } {
  const limits: [Limit, number][] = [
    ['link', linkBytes / LINK_GBS / 1e3],
    ['memory', memory / MEMORY_GBS / 1e3],
    ['products', flops / DENSE_TFLOPS / 1e6],
  ]
  const [limit, limitUs] = limits.reduce((most, l) => (l[1] > most[1] ? l : most), ['', 0])
  return { limit, limitUs }
}

export const figure = (
  what: string,
  shape: string,
  sms: number,
  us: number,
  linkBytes: number,
  work: Work = {},
): EpCudaFigure => ({
  ...{ what, shape, sms, us, linkBytes, ...limitOf(linkBytes, work) },
  linkGBs: linkBytes / us / 1e3,
  ...(work.stored ? { stored: work.stored } : {}),
})

export const deepEp = (version: string, us: number | undefined): Work =>
  us === undefined ? {} : { stored: { us, what: `DeepEP ${version}` } }
