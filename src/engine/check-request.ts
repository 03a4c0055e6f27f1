// Checks a request against the model before it is queued, and puts it into the form ranks take.
import { hashWords, type RankRequest } from '../scheduler/index.js'
import { RequestError } from './errors.js'
import type { GenerationRequest, SamplingParams } from './request.js'

export interface RequestLimits {
  readonly contextLength: number
  /** Tokens of the smallest KV pool a request may land on. */
  readonly poolTokens: number
  readonly vocabSize: number
  readonly dpRanks: number
  readonly eosTokenIds: readonly number[]
}

const RANGES: readonly { param: keyof SamplingParams; ok: (v: number) => boolean; expected: string }[] = [
  { param: 'temperature', ok: v => v >= 0 && v <= 100, expected: 'a number from 0 to 100' },
  { param: 'topP', ok: v => v > 0 && v <= 1, expected: 'a number above 0, at most 1' },
  { param: 'minP', ok: v => v >= 0 && v <= 1, expected: 'a number from 0 to 1' },
  {
    param: 'topK',
    ok: v => Number.isInteger(v) && v >= 0 && v < 2 ** 24,
    expected: 'an integer of at least 0 (0 = off)',
  },
  { param: 'maxTokens', ok: v => Number.isInteger(v) && v >= 1, expected: 'an integer of at least 1' },
]

/** @throws RequestError */
export function checkRequest(request: GenerationRequest, limits: RequestLimits): void {
  const { inputIds, sampling } = request
  if (inputIds.length === 0) throw new RequestError('SY_REQUEST_EMPTY')
  for (const { param, ok, expected } of RANGES) {
    const value = sampling[param] as number
    if (!ok(value)) throw new RequestError('SY_REQUEST_BAD_PARAMETER', { param, value: String(value), expected })
  }
  const longest = Math.min(limits.contextLength, limits.poolTokens)
  if (inputIds.length + sampling.maxTokens > longest) {
    throw new RequestError('SY_REQUEST_TOO_LONG', {
      contextLength: longest,
      promptTokens: inputIds.length,
      maxTokens: sampling.maxTokens,
    })
  }
  checkTokens(inputIds, limits.vocabSize)
  const rank = request.routedDpRank
  if (rank !== undefined && !(Number.isInteger(rank) && rank >= 0 && rank < limits.dpRanks)) {
    throw new RequestError('SY_REQUEST_NO_SUCH_RANK', { rank, ranks: limits.dpRanks })
  }
}

export function checkTokens(inputIds: readonly number[], vocabSize: number): void {
  inputIds.forEach((token, index) => {
    if (!Number.isInteger(token) || token < 0 || token >= vocabSize) {
      throw new RequestError('SY_REQUEST_BAD_TOKEN', { token, index, vocabSize })
    }
  })
}

export function toRankRequest(
  id: string,
  request: GenerationRequest,
  seed: bigint,
  eos: readonly number[],
): RankRequest {
  const { sampling } = request
  const bits = BigInt.asUintN(64, seed)
  return {
    id,
    key: requestKey(request.inputIds),
    inputIds: Int32Array.from(request.inputIds),
    maxTokens: sampling.maxTokens,
    temperature: sampling.temperature,
    topP: sampling.topP,
    topK: sampling.topK,
    minP: sampling.minP,
    seedLow: Number(bits & 0xffffffffn),
    seedHigh: Number(bits >> 32n),
    endTokenIds: [...(sampling.ignoreEos ? [] : eos), ...sampling.stopTokenIds],
    wantLogits: false,
    isHealthCheck: request.isHealthCheck ?? false,
  }
}

/** Names a request in replica choice by what it asks, so that the same prompt takes the same replicas in every run. */
export const requestKey = (inputIds: readonly number[]): number => hashWords(inputIds)
