// Figures that `bench ep --device cuda` stands beside: measured on two H200s of one host (18 links of NVLink 4) on 2026-11-29 with the
// projects' own benchmarks, same shapes, medians. They are constants here: none of these projects is needed to run the benchmark.

/**
 * µs. DeepEP V2 at 64 SMs: dispatch with its copy, combine with its reduction, layouts known. 128 tokens: the faster of V1's low-latency
 * kernels and V2 with 22 or 64 SMs; the pair in a graph is V1's, the only one that was measured so.
 */
export interface StoredFigures {
  readonly dispatchBf16: number
  readonly dispatchFp8: number
  readonly combine: number
  readonly lowLatencyDispatchFp8: number
  readonly lowLatencyDispatchBf16: number
  readonly lowLatencyCombine: number
  readonly lowLatencyPairFp8: number
}

/** By hidden width, for 4096 tokens a rank (128 in low-latency mode), top-8, two ranks. */
const DEEPEP: Readonly<Record<number, StoredFigures>> = {
  7168: {
    dispatchBf16: 257.1,
    dispatchFp8: 139.5,
    combine: 240.8,
    lowLatencyDispatchFp8: 19.5,
    lowLatencyDispatchBf16: 22.3,
    lowLatencyCombine: 21.9,
    lowLatencyPairFp8: 66.2,
  },
  2048: {
    dispatchBf16: 81.2,
    dispatchFp8: 50.6,
    combine: 76.2,
    lowLatencyDispatchFp8: 16.3,
    lowLatencyDispatchBf16: 18.1,
    lowLatencyCombine: 15.4,
    lowLatencyPairFp8: 30.2,
  },
}

/** Tokens a rank of the stored figures. */
const TOKENS = { normal: 4096, lowLatency: 128 } as const
const EXPERTS: Readonly<Record<number, number>> = { 7168: 256, 2048: 128 }

/** undefined where nothing is stored for the shape. */
export function storedDeepEp(
  mode: keyof typeof TOKENS,
  shape: { readonly tokens: number; readonly hidden: number; readonly experts: number; readonly skew: number },
): StoredFigures | undefined {
  const same = shape.tokens === TOKENS[mode] && shape.experts === EXPERTS[shape.hidden] && shape.skew === 0
  return same ? DEEPEP[shape.hidden] : undefined
}

/** DeepGEMM, bf16, contiguous rows, one H200: [experts, rows an expert, n, k, TFLOP/s]. */
const DEEPGEMM = [
  [8, 512, 4096, 7168, 764],
  [8, 1024, 4096, 7168, 790],
  [8, 512, 7168, 2048, 715],
  [8, 1024, 7168, 2048, 754],
  [128, 128, 1536, 2048, 418],
  [128, 512, 1536, 2048, 714],
  [128, 128, 2048, 768, 395],
  [128, 512, 2048, 768, 657],
] as const

/**
 * µs that DeepGEMM would take at the rate of the stored shape nearest to `rows` (all experts' together, with those that pad segments to
 * 128 as its contiguous layout asks) of the same n and k. An estimate, on its side where weights of many experts must be read: some
 * rates are stored for 8 experts only. The activation between the products is not counted.
 */
export function storedGemmUs(experts: number, rows: number, n: number, k: number): number | undefined {
  const distance = (each: number): number => Math.abs(Math.log(each / (rows / experts)))
  const [nearest] = DEEPGEMM.filter(s => s[2] === n && s[3] === k).sort((a, b) => distance(a[1]) - distance(b[1]))
  return nearest && (2 * rows * n * k) / nearest[4] / 1e6
}

/** What an H200 gives: GB/s of memory (a copy inside it), TFLOP/s of a dense bf16 product of 8192³. */
export const MEMORY_GBS = 4107
export const DENSE_TFLOPS = 804
/** GB/s one way of stores to a peer by all SMs, both ways at once. */
export const LINK_GBS = 364
/** GB/s of copies between two GPUs, both ways at once. A run whose copy is more than 5% off ran on another machine, or beside others. */
export const PEER_COPY_GBS = 386

/** Why figures of a run may not be compared with the stored ones; undefined when they may. */
export function voidReason(copyGBs: number): string | undefined {
  if (Math.abs(copyGBs / PEER_COPY_GBS - 1) <= 0.05) return undefined
  return `copies between the GPUs reach ${copyGBs.toFixed(0)} GB/s, more than 5% off the stored ${PEER_COPY_GBS}: not comparable with stored figures`
}
