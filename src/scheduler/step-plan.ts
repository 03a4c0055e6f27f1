// Vote → plan. Each attention-DP rank votes a row of words; the same rows on every rank give, by pure functions, the
// same plan. Fields and reductions are SGLang's MLP sync (managers/scheduler_components/dp_attn.py) plus our own
// words that must be equal everywhere: whatever differs there is an error that names ranks and field, never a hang.
import type { ParallelSizes } from '../parallel/index.js'
import { RankError } from '../runtime/errors.js'
import { FORWARD_MODE, type ForwardMode, IDLE_BATCH, type LocalBatch } from './batch.js'

/** In wire order. The first eleven are SGLang's; the rest are ours. */
export const VOTE_FIELDS = [
  'num_tokens',
  'num_tokens_for_logprob',
  'can_run_decode_graph',
  'is_extend_in_batch',
  'local_can_run_tbo',
  'local_forward_mode',
  'can_run_prefill_graph',
  'prefill_graph_max_prefix_len',
  'can_run_draft_graph',
  'is_health_check',
  'attention_pairs',
  'stopping',
  'prefillable',
  'doorbell',
  'step',
  'config_hash',
  'placement_version',
  'generation',
  'previous_plan_hash',
] as const
export type VoteField = (typeof VOTE_FIELDS)[number]
export const VOTE_WORDS = VOTE_FIELDS.length

/** Fields that must be equal on all ranks. */
const EQUAL_FIELDS: readonly VoteField[] = [
  'step',
  'config_hash',
  'placement_version',
  'generation',
  'previous_plan_hash',
]

const at = (field: VoteField): number => VOTE_FIELDS.indexOf(field)

/** What a rank knows beside its batch. */
export interface VoteContext {
  readonly step: number
  /** The rank could replay a captured graph for its batch. */
  readonly decodeGraph: boolean
  readonly stopping: boolean
  /** The rank has prompts, in this step or held back. */
  readonly prefillable: boolean
  /** Rings the rank had heard when it looked into its mailbox. */
  readonly doorbell: number
  readonly configHash: number
  readonly placementVersion: number
  readonly generation: number
  readonly previousPlanHash: number
}

/** Writes one rank's vote. */
export function castVote(batch: LocalBatch, context: VoteContext, out: Int32Array): void {
  out.fill(0)
  const set = (field: VoteField, value: number) => {
    out[at(field)] = value
  }
  set('num_tokens', batch.tokens)
  set('num_tokens_for_logprob', batch.logitRows)
  set('can_run_decode_graph', context.decodeGraph ? 1 : 0)
  set('is_extend_in_batch', batch.mode === 'extend' || batch.mode === 'mixed' ? 1 : 0)
  set('local_forward_mode', FORWARD_MODE[batch.mode])
  set('is_health_check', batch.healthCheck ? 1 : 0)
  set('attention_pairs', Math.min(batch.attentionPairs, 0x7fffffff))
  set('stopping', context.stopping ? 1 : 0)
  set('prefillable', context.prefillable ? 1 : 0)
  set('doorbell', context.doorbell)
  set('step', context.step)
  set('config_hash', context.configHash)
  set('placement_version', context.placementVersion)
  set('generation', context.generation)
  set('previous_plan_hash', context.previousPlanHash)
}

/**
 * The row that stands for a rank that is gone: idle, without tokens; it vetoes prefill graphs, but neither decode graphs,
 * draft graphs nor overlap (source: SGLang's fallback row). Our own words are the caller's, so that they agree.
 */
export function fallbackVote(context: VoteContext, out: Int32Array): void {
  castVote(IDLE_BATCH, context, out)
  for (const field of ['can_run_decode_graph', 'local_can_run_tbo', 'can_run_draft_graph'] as const) out[at(field)] = 1
}

/** How rows of all DP ranks are brought together: everyone padded to the longest, or one after another. */
export type DpPaddingMode = 'MAX_LEN' | 'SUM_LEN'

/** How an all-to-all chooses its mode. */
export interface DispatchRule {
  readonly mode: 'auto' | 'normal' | 'low_latency'
  /** Tokens of a DP rank that fit into the low-latency slots of its ranks. */
  readonly maxTokensForLowLatency: number
}

export interface PlanRules {
  /** A padding mode for every step, or null for the rule. */
  readonly padding: DpPaddingMode | null
  /** null without an all-to-all backend. */
  readonly dispatch: DispatchRule | null
}

/** auto: normal iff any rank extends or has more tokens than low-latency slots (source: SGLang deepep_mode auto, which looks at the first only). */
export function chooseDispatch(
  numTokens: readonly number[],
  isExtend: boolean,
  rule: DispatchRule | null,
): 'none' | 'normal' | 'low_latency' {
  if (rule === null) return 'none'
  if (rule.mode !== 'auto') return rule.mode
  return isExtend || Math.max(...numTokens) > rule.maxTokensForLowLatency ? 'normal' : 'low_latency'
}

/** What every rank does in a step: the same frozen data on all of them. Arrays have one entry a DP rank. */
export interface StepPlan {
  readonly step: number
  readonly numTokens: readonly number[]
  readonly numLogitRows: readonly number[]
  readonly attentionPairs: readonly number[]
  readonly forwardModes: readonly ForwardMode[]
  /** The mode of all ranks that have work, null when they differ; idle when none has. */
  readonly globalMode: ForwardMode | null
  /** Whoever has work has only probes: such a pass stays out of balancedness. */
  readonly isHealthCheck: boolean
  readonly isExtend: boolean
  readonly dpPadding: DpPaddingMode
  readonly dispatch: 'none' | 'normal' | 'low_latency'
  /** Every DP rank can replay a captured graph (those without tokens vote that they can). */
  readonly decodeGraph: boolean
  /** DP ranks that have prompts. */
  readonly prefillable: readonly boolean[]
  /**
   * Fewest rings any rank had heard. The node rings all ranks alike, so after an idle step every rank sleeps until it has
   * heard more than this: then all of them wake for the same next vote, also those that had looked later than others.
   */
  readonly doorbell: number
  /** Nobody has tokens: no program runs. */
  readonly idle: boolean
  /** Everybody is asked to stop and has nothing left. */
  readonly stop: boolean
  readonly hash: number
}

/**
 * MAX_LEN iff nobody extends and 2·sum >= max·ranks (ties to MAX_LEN): an all-reduce moves about twice the sum, an
 * all-gather max times ranks (source: SGLang DpPaddingMode.get_dp_padding_mode). Over one rank the two are the same.
 */
export function choosePadding(numTokens: readonly number[], isExtend: boolean): DpPaddingMode {
  if (isExtend && numTokens.length > 1) return 'SUM_LEN'
  const sum = numTokens.reduce((a, b) => a + b, 0)
  return 2 * sum >= Math.max(...numTokens) * numTokens.length ? 'MAX_LEN' : 'SUM_LEN'
}

/**
 * @param votes one row of VOTE_WORDS a rank; the first of each attention group speaks for its DP rank
 * @param rules what the flags say; equal on all ranks
 * @throws RankError when a field that must be equal on all ranks differs
 */
export function planStep(
  votes: Int32Array,
  sizes: Pick<ParallelSizes, 'tp' | 'attnDp'>,
  rules: PlanRules = { padding: null, dispatch: null },
): StepPlan {
  const get = (rank: number, field: VoteField) => votes[rank * VOTE_WORDS + at(field)]!
  const stride = sizes.tp / sizes.attnDp
  const all = (field: VoteField) => Array.from({ length: sizes.attnDp }, (_, dp) => get(dp * stride, field))
  const everyRank = (field: VoteField) => Array.from({ length: sizes.tp }, (_, r) => get(r, field))
  for (const field of EQUAL_FIELDS) {
    const values = everyRank(field)
    if (values.every(v => v === values[0])) continue
    const { odd, said } = minority(values)
    throw new RankError('SY_RANK_DISAGREES', {
      collective: 'the vote of a step',
      where: ` (step ${get(0, 'step')})`,
      field,
      values: said,
      rank: odd,
      step: get(0, 'step'),
    })
  }
  const numTokens = all('num_tokens')
  const isExtend = all('is_extend_in_batch').some(v => v === 1)
  const idle = numTokens.every(n => n === 0)
  const names = Object.keys(FORWARD_MODE) as ForwardMode[]
  const forwardModes = all('local_forward_mode').map(v => names.find(m => FORWARD_MODE[m] === v) ?? 'idle')
  const probes = all('is_health_check')
  const plan = {
    step: get(0, 'step'),
    numTokens,
    numLogitRows: all('num_tokens_for_logprob'),
    attentionPairs: all('attention_pairs'),
    forwardModes,
    globalMode: agreedMode(forwardModes),
    isHealthCheck: !idle && numTokens.every((n, rank) => n === 0 || probes[rank] === 1),
    isExtend,
    decodeGraph: all('can_run_decode_graph').every(v => v === 1),
    dispatch: chooseDispatch(numTokens, isExtend, rules.dispatch),
    dpPadding: rules.padding ?? choosePadding(numTokens, isExtend),
    prefillable: all('prefillable').map(v => v === 1),
    doorbell: Math.min(...everyRank('doorbell')),
    idle,
    stop: idle && everyRank('stopping').every(v => v === 1),
  }
  return Object.freeze({ ...plan, hash: hashWords(votes) })
}

function agreedMode(modes: readonly ForwardMode[]): ForwardMode | null {
  const busy = modes.filter(mode => mode !== 'idle')
  const first = busy[0] ?? 'idle'
  return busy.every(mode => mode === first) ? first : null
}

/**
 * Who says something else than most do (on a draw, than rank 0 does), and all of it in words.
 * @param values not all equal, one a rank
 */
function minority(values: readonly number[]): { odd: number; said: string } {
  const ranksOf = new Map<number, number[]>()
  for (const [rank, value] of values.entries()) ranksOf.set(value, [...(ranksOf.get(value) ?? []), rank])
  const camps = [...ranksOf].sort(([, a], [, b]) => b.length - a.length || a[0]! - b[0]!)
  const name = (ranks: readonly number[]) =>
    `rank${ranks.length === 1 ? '' : 's'} ${ranks.slice(0, 8).join(', ')}${ranks.length > 8 ? ', …' : ''}`
  const said = camps.slice(0, 4).map(([value, ranks]) => `${value} on ${name(ranks)}`)
  return { odd: camps[1]![1][0]!, said: said.join('; ') }
}

/** FNV-1a over words; equal on every rank because the votes are. */
export function hashWords(words: ArrayLike<number>): number {
  let hash = 0x811c9dc5
  for (let i = 0; i < words.length; i++) hash = Math.imul(hash ^ words[i]!, 0x01000193)
  return hash | 0
}
