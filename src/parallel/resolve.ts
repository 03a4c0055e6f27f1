// Flags → sizes. Every rule is checked here, before a rank starts, with the numbers that would work; what is consistent
// but not built yet is refused by name afterwards. Rules: SGLang arg_groups/parallel_hook.py and
// distributed/parallel_state.py. The old `--dp-size N --enable-dp-attention` is read as `--attn-dp-size N`, with a note.
import { ParallelError } from './errors.js'
import type { ParallelSizes } from './topology.js'

/** Sizes as given; null where a flag is absent. */
export interface ParallelFlags {
  readonly tpSize: number
  readonly dpSize: number
  readonly attnDpSize: number
  readonly attnCpSize: number
  readonly epSize: number | null
  readonly moeDpSize: number
  readonly moeDenseTpSize: number | null
  readonly enableDpAttention: boolean
  readonly enableDpLmHead: boolean
  readonly nnodes: number
  readonly nodeRank: number
  readonly moeA2aBackend: string
  readonly epNumRedundantExperts: number
}

/** What the model says that sizes must fit. */
export interface ModelFacts {
  readonly heads: number
  /** Heads whose keys and values are cached apart; MLA has one latent for all, which is copied. */
  readonly kvHeads: number
  readonly latentCache: boolean
  /** 0 without routed experts. */
  readonly experts: number
  readonly moeIntermediate: number
  /** Width of the dense layers, cut over all ranks unless they stay whole; null without. */
  readonly denseIntermediate: number | null
  /** Width of the shared experts, cut over all ranks without an all-to-all backend; null without. */
  readonly sharedIntermediate: number | null
  /** Rows of the output head, cut over all ranks, or over attention-TP with --enable-dp-lm-head. */
  readonly vocab: number
  /** Rows of an FP8 block, or null: a cut of an expert must keep whole blocks only where it is computed in FP8. */
  readonly fp8BlockRows: number | null
}

export interface ResolvedParallel {
  readonly sizes: ParallelSizes
  readonly denseLocal: boolean
  readonly dpLmHead: boolean
  /** Readings of old flags, to be shown. */
  readonly notes: readonly string[]
}

const wrong = (what: string, remedy: string) => new ParallelError('SY_PARALLEL_SIZES', { what, remedy })
const missing = (flag: string, value: unknown, remedy: string) =>
  new ParallelError('SY_PARALLEL_NOT_SUPPORTED', { flag, value: String(value), remedy })

/** Divisors of n, for messages. */
const divisors = (n: number): number[] => Array.from({ length: n }, (_, i) => i + 1).filter(d => n % d === 0)
const listed = (values: readonly number[]): string => values.join(', ')

/** @throws ParallelError */
export function resolveParallel(flags: ParallelFlags, model: ModelFacts): ResolvedParallel {
  const notes: string[] = []
  let { attnDpSize: attnDp, dpSize } = flags
  if (flags.enableDpAttention) {
    if (attnDp > 1 && dpSize > 1 && attnDp !== dpSize) {
      throw wrong(
        `--dp-size ${dpSize} --enable-dp-attention and --attn-dp-size ${attnDp} contradict each other`,
        'Give --attn-dp-size alone.',
      )
    }
    if (dpSize > 1) notes.push(`--dp-size ${dpSize} --enable-dp-attention is read as --attn-dp-size ${dpSize}`)
    if (dpSize > 1) attnDp = dpSize
    dpSize = 1
  }
  if (dpSize > 1 && attnDp > 1) {
    throw wrong(
      `--dp-size ${dpSize} (whole replicas) is combined with --attn-dp-size ${attnDp}`,
      'Use one of the two: replicas beside each other, or attention data-parallel inside one.',
    )
  }
  const sizes = splitSizes(flags, attnDp)
  checkModel(sizes, flags, model)
  checkWidths(sizes, flags, model)
  refuseUnbuilt(sizes, dpSize)
  const denseTp = flags.moeDenseTpSize
  if (denseTp !== null && denseTp !== 1 && denseTp !== sizes.tp) {
    throw missing(
      '--moe-dense-tp-size',
      denseTp,
      `Use 1 (dense layers whole on every rank) or ${sizes.tp} (cut over all).`,
    )
  }
  return { sizes, denseLocal: denseTp === 1 && sizes.tp > 1, dpLmHead: flags.enableDpLmHead, notes }
}

function splitSizes(flags: ParallelFlags, attnDp: number): ParallelSizes {
  const { tpSize: tp, attnCpSize: attnCp, moeDpSize: moeDp, nnodes: nodes } = flags
  if (tp % (attnDp * attnCp) !== 0) {
    throw wrong(
      `--tp-size ${tp} does not divide into --attn-dp-size ${attnDp} x --attn-cp-size ${attnCp}`,
      attnCp === 1
        ? `Use an --attn-dp-size of ${listed(divisors(tp))}, or a --tp-size that is a multiple of ${attnDp}.`
        : `Use a --tp-size that is a multiple of ${attnDp * attnCp}.`,
    )
  }
  const ep = flags.epSize ?? (flags.moeA2aBackend === 'none' ? 1 : tp / moeDp)
  if (tp % (ep * moeDp) !== 0) {
    throw wrong(
      `--tp-size ${tp} does not divide into --ep-size ${ep} x --moe-dp-size ${moeDp}`,
      `Use an --ep-size of ${listed(divisors(tp / moeDp))}, or a --tp-size that is a multiple of ${ep * moeDp}.`,
    )
  }
  if (ep > 1 && moeDp > 1 && ep * moeDp !== tp) {
    throw wrong(`--ep-size ${ep} x --moe-dp-size ${moeDp} is not --tp-size ${tp}`, `Use --ep-size ${tp / moeDp}.`)
  }
  if (attnCp > 1 && attnCp !== moeDp && moeDp !== 1) {
    throw wrong(
      `--attn-cp-size ${attnCp} differs from --moe-dp-size ${moeDp}`,
      'Make them equal, or use --moe-dp-size 1.',
    )
  }
  if (flags.moeA2aBackend !== 'none' && ep !== tp) {
    throw wrong(
      `--moe-a2a-backend ${flags.moeA2aBackend} needs --ep-size equal to --tp-size, but they are ${ep} and ${tp}`,
      `Use --ep-size ${tp}, or leave --ep-size out.`,
    )
  }
  if (tp % nodes !== 0) {
    throw wrong(
      `--tp-size ${tp} ranks do not spread evenly over --nnodes ${nodes}`,
      `Use a --tp-size that is a multiple of ${nodes}.`,
    )
  }
  if (flags.nodeRank >= nodes) {
    throw wrong(
      `--node-rank ${flags.nodeRank} of --nnodes ${nodes} does not exist`,
      `Use a --node-rank from 0 to ${nodes - 1}.`,
    )
  }
  return { tp, attnDp, attnCp, attnTp: tp / (attnDp * attnCp), moeDp, ep, moeTp: tp / (ep * moeDp), nodes }
}

function checkModel(sizes: ParallelSizes, flags: ParallelFlags, model: ModelFacts): void {
  const { attnTp, ep, moeTp, tp } = sizes
  const dpFor = (fits: (attnTp: number) => boolean) => divisors(tp).filter(dp => fits(tp / dp / sizes.attnCp))
  if (model.heads % attnTp !== 0) {
    const options = dpFor(a => Number.isInteger(a) && model.heads % a === 0)
    throw wrong(
      `${model.heads} attention heads do not divide over attention-TP ${attnTp} (--tp-size ${tp} / --attn-dp-size ${sizes.attnDp})`,
      `Use an --attn-dp-size of ${listed(options)}.`,
    )
  }
  if (!model.latentCache && model.kvHeads % attnTp !== 0 && attnTp % model.kvHeads !== 0) {
    const fits = (a: number) => Number.isInteger(a) && (model.kvHeads % a === 0 || a % model.kvHeads === 0)
    throw wrong(
      `${model.kvHeads} key-value heads can be neither divided nor repeated over attention-TP ${attnTp}`,
      `Use an --attn-dp-size of ${listed(dpFor(a => fits(a) && model.heads % a === 0))}.`,
    )
  }
  if (model.experts === 0) {
    const nothing = (given: string, flag: string) =>
      wrong(`${given}, but the model has no routed experts`, `Leave ${flag} out.`)
    if (flags.moeA2aBackend !== 'none' && tp > 1)
      throw nothing(`--moe-a2a-backend ${flags.moeA2aBackend}`, '--moe-a2a-backend')
    if (ep > 1) throw nothing(`--ep-size ${ep}`, '--ep-size')
    const redundant = flags.epNumRedundantExperts
    if (redundant > 0) throw nothing(`--ep-num-redundant-experts ${redundant}`, '--ep-num-redundant-experts')
    return
  }
  const redundant = flags.epNumRedundantExperts
  const physical = model.experts + redundant
  if (physical % ep !== 0) {
    const more = ep - (physical % ep)
    throw wrong(
      `${physical} physical experts (${model.experts} + ${redundant} redundant) do not divide over --ep-size ${ep}`,
      `Use --ep-num-redundant-experts ${redundant + more}, or an --ep-size of ${listed(divisors(tp).filter(d => physical % d === 0))}.`,
    )
  }
  // Kernels of experts compute at least two columns.
  const fits = (pieces: number) => pieces === 1 || Math.floor(model.moeIntermediate / pieces) >= 2
  if (!fits(moeTp)) {
    throw wrong(
      `experts of width ${model.moeIntermediate} cannot be cut into ${moeTp} pieces (--tp-size ${tp} / --ep-size ${ep})`,
      `Use a larger --ep-size: ${listed(divisors(tp).filter(d => fits(tp / d)))}.`,
    )
  }
}

/** Layers that are cut over all ranks: each must get a piece. */
function checkWidths({ tp, attnTp }: ParallelSizes, flags: ParallelFlags, model: ModelFacts): void {
  const { denseIntermediate: dense, sharedIntermediate: shared, vocab } = model
  const headPieces = flags.enableDpLmHead ? attnTp : tp
  if (vocab < headPieces) {
    const whole = vocab >= attnTp ? '--enable-dp-lm-head, which cuts it over attention-TP only, or ' : ''
    throw wrong(
      `an output head of ${vocab} tokens cannot be cut into ${headPieces} pieces`,
      `Use ${whole}a --tp-size of at most ${vocab}.`,
    )
  }
  if (dense !== null && dense < tp && flags.moeDenseTpSize !== 1) {
    throw wrong(
      `dense layers of width ${dense} cannot be cut over --tp-size ${tp}`,
      `Use --moe-dense-tp-size 1, which keeps them whole on every rank, or a --tp-size of at most ${dense}.`,
    )
  }
  if (shared !== null && shared < tp && flags.moeA2aBackend === 'none') {
    throw wrong(
      `shared experts of width ${shared} cannot be cut over --tp-size ${tp}`,
      `Use a --tp-size of at most ${shared}.`,
    )
  }
}

function refuseUnbuilt(sizes: ParallelSizes, dpSize: number): void {
  if (sizes.attnCp > 1)
    throw missing('--attn-cp-size', sizes.attnCp, 'Leave it out: attention is not cut over context yet.')
  if (sizes.moeDp > 1) throw missing('--moe-dp-size', sizes.moeDp, `Use --ep-size ${sizes.tp} instead.`)
  if (sizes.nodes > 1) throw missing('--nnodes', sizes.nodes, 'Run all ranks on one node.')
  if (dpSize > 1) {
    const remedy = 'Start that many servers behind a load balancer, or use --attn-dp-size for attention data-parallel.'
    throw missing('--dp-size', dpSize, remedy)
  }
}
