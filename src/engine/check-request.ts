// Checks a request against the model before it is queued, and puts it into the form ranks take.
import type { LogitEdits, RankRequest } from '../scheduler/index.js'
import { RequestError } from './errors.js'
import { type GenerationRequest, MAX_TOP_LOGPROBS, type SamplingParams } from './request.js'

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
  { param: 'maxTokens', ok: v => Number.isInteger(v) && v >= 0, expected: 'an integer of at least 1' },
  { param: 'minTokens', ok: v => Number.isInteger(v) && v >= 0, expected: 'an integer of at least 0' },
  { param: 'presencePenalty', ok: v => v >= -2 && v <= 2, expected: 'a number from -2 to 2' },
  { param: 'frequencyPenalty', ok: v => v >= -2 && v <= 2, expected: 'a number from -2 to 2' },
  { param: 'repetitionPenalty', ok: v => v > 0 && v <= 2, expected: 'a number above 0, at most 2' },
]

const badParameter = (param: string, value: unknown, expected: string): RequestError =>
  new RequestError('SY_REQUEST_BAD_PARAMETER', { param, value: String(value), expected })

/** @throws RequestError */
export function checkRequest(request: GenerationRequest, limits: RequestLimits): void {
  const { inputIds, sampling } = request
  // Programs in plain JavaScript may hand in anything.
  if (!Array.isArray(inputIds) && !ArrayBuffer.isView(inputIds)) {
    throw badParameter('inputIds', typeof inputIds, 'an array of token ids, as tokenizer.encode makes it')
  }
  if (inputIds.length === 0) throw new RequestError('SY_REQUEST_EMPTY')
  for (const { param, ok, expected } of RANGES) {
    const value = sampling[param] as number | undefined
    if (value !== undefined && !ok(value)) throw badParameter(param, value, expected)
  }
  if (sampling.maxTokens === 0 && request.promptTopLogprobs === undefined) {
    throw badParameter('maxTokens', 0, 'an integer of at least 1')
  }
  if ((sampling.minTokens ?? 0) > sampling.maxTokens) {
    throw badParameter('minTokens', sampling.minTokens, `at most maxTokens (${sampling.maxTokens})`)
  }
  checkLogitFields(request, limits.vocabSize)
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

function checkLogitFields(request: GenerationRequest, vocabSize: number): void {
  for (const param of ['topLogprobs', 'promptTopLogprobs'] as const) {
    const value = request[param]
    if (value !== undefined && !(Number.isInteger(value) && value >= 0 && value <= MAX_TOP_LOGPROBS)) {
      throw badParameter(param, value, `an integer from 0 to ${MAX_TOP_LOGPROBS}`)
    }
  }
  const inVocabulary = (param: string, id: unknown): void => {
    if (Number.isInteger(id) && (id as number) >= 0 && (id as number) < vocabSize) return
    throw badParameter(param, id, `token ids from 0 to ${vocabSize - 1}`)
  }
  for (const id of request.sampling.stopTokenIds) inVocabulary('stopTokenIds', id)
  for (const [token, bias] of Object.entries(request.sampling.logitBias ?? {})) {
    inVocabulary('logitBias', Number(token))
    if (!(bias >= -100 && bias <= 100)) throw badParameter('logitBias', bias, 'numbers from -100 to 100')
  }
}

/** The edits a request asks for, or nothing: then its rows are drawn from as they are. */
function editsOf(sampling: SamplingParams): { edits?: LogitEdits } {
  const biased = Object.entries(sampling.logitBias ?? {})
  const edits: LogitEdits = {
    repetitionPenalty: sampling.repetitionPenalty ?? 1,
    frequencyPenalty: sampling.frequencyPenalty ?? 0,
    presencePenalty: sampling.presencePenalty ?? 0,
    minTokens: sampling.minTokens ?? 0,
    biasTokens: biased.map(([token]) => Number(token)),
    biasValues: biased.map(([, bias]) => bias),
  }
  const { repetitionPenalty, frequencyPenalty, presencePenalty, minTokens } = edits
  const none =
    repetitionPenalty === 1 && frequencyPenalty === 0 && presencePenalty === 0 && minTokens === 0 && biased.length === 0
  return none ? {} : { edits }
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
    inputIds: Int32Array.from(request.inputIds),
    maxTokens: sampling.maxTokens,
    temperature: sampling.temperature,
    topP: sampling.topP,
    topK: sampling.topK,
    minP: sampling.minP,
    seedLow: Number(bits & 0xffffffffn),
    seedHigh: Number(bits >> 32n),
    endTokenIds: [...(sampling.ignoreEos ? [] : eos), ...sampling.stopTokenIds],
    wantLogits: request.promptTopLogprobs !== undefined,
    ...editsOf(sampling),
    ...(request.topLogprobs === undefined ? {} : { topLogprobs: request.topLogprobs }),
    ...(request.promptTopLogprobs === undefined ? {} : { promptTopLogprobs: request.promptTopLogprobs }),
    isHealthCheck: request.isHealthCheck ?? false,
    priority: request.priority ?? 0,
  }
}

/** A prompt whose logits are wanted at every position; nothing is drawn. */
export const toLogitsRequest = (id: string, ids: readonly number[]): RankRequest => ({
  id,
  inputIds: Int32Array.from(ids),
  maxTokens: 0,
  temperature: 0,
  topP: 1,
  topK: 0,
  minP: 0,
  seedLow: 0,
  seedHigh: 0,
  endTokenIds: [],
  wantLogits: true,
  isHealthCheck: false,
  priority: 0,
})
