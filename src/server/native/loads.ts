// GET /v1/loads: the state of every DP rank, for routers that stand before several servers. SGLang's names.
import type { GenerationEngine } from '../../engine/request.js'
import { HttpError } from '../errors.js'
import type { Metrics } from '../metrics/index.js'

const round = (value: number): number => Number(value.toFixed(4))
const share = (part: number, whole: number): number => (whole > 0 ? round(part / whole) : 0)

/** @param dpRank only this one, as the query says it */
export function loads(
  engine: GenerationEngine,
  metrics: Metrics,
  version: string,
  dpRank: string | undefined,
): Response {
  const states = engine.state()
  if (dpRank !== undefined && !(/^\d{1,6}$/.test(dpRank) && Number(dpRank) < states.length)) {
    const expected = states.length === 1 ? '0: there is one attention-DP rank' : `from 0 to ${states.length - 1}`
    throw new HttpError('SY_HTTP_INVALID_QUERY', { param: 'dp_rank', value: dpRank.slice(0, 40), expected })
  }
  const limit = Number(engine.info()['maxRunningRequests'])
  const all = states
    .filter(state => dpRank === undefined || state.dpRank === Number(dpRank))
    .map(state => ({
      dp_rank: state.dpRank,
      num_running_reqs: state.running,
      num_waiting_reqs: state.waiting,
      num_total_reqs: state.running + state.waiting,
      num_used_tokens: state.usedTokens,
      max_total_num_tokens: state.totalTokens,
      ...(Number.isFinite(limit) ? { max_running_requests: limit, utilization: share(state.running, limit) } : {}),
      token_usage: share(state.usedTokens, state.totalTokens),
      gen_throughput: round(metrics.throughput(state.dpRank)),
      cache_hit_rate: share(state.cachedTokens, state.cachedTokens + state.prefilledTokens),
      num_retracted_reqs: state.retractions,
      num_steps: state.steps,
      vote_wait_ms: round(state.voteWaitMs),
      attention_pairs: state.attentionPairs,
    }))
  const sum = (of: (load: (typeof all)[number]) => number): number => all.reduce((total, load) => total + of(load), 0)
  return Response.json({
    timestamp: new Date().toISOString(),
    version,
    dp_rank_count: states.length,
    loads: all,
    aggregate: {
      total_running_reqs: sum(l => l.num_running_reqs),
      total_waiting_reqs: sum(l => l.num_waiting_reqs),
      total_reqs: sum(l => l.num_total_reqs),
      total_used_tokens: sum(l => l.num_used_tokens),
      avg_token_usage: round(sum(l => l.token_usage) / Math.max(1, all.length)),
      gen_throughput: round(sum(l => l.gen_throughput)),
    },
  })
}
