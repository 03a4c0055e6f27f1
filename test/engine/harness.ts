// What engine tests share: reference logits of the fixtures, requests in the form ranks take, and measures of agreement.
// Invariant: every comparison returns a number or throws; none of them knows a tolerance.
import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { type EngineFlags, engineFlags } from '../../src/config/flags.js'
import { toRankRequest } from '../../src/engine/check-request.js'
import { OneThreadEngine, type OneThreadResult } from '../../src/engine/one-thread.js'
import { GREEDY, type SamplingParams } from '../../src/engine/request.js'
import type { RankRequest } from '../../src/scheduler/index.js'
import { FIXTURES } from '../checkpoints.js'

export type GivenFlags = Partial<EngineFlags>

/** Two ranks, attention on each and experts divided: the layout of several GPUs. */
export const EXPERTS_ON_TWO: GivenFlags = {
  tpSize: 2,
  attnDpSize: 2,
  epSize: 2,
  moeA2aBackend: 'deepep',
  enableDpLmHead: true,
  moeDenseTpSize: 1,
}

/** A prompt of a reference file with what another implementation made of it. */
export interface ReferencePrompt {
  readonly ids: readonly number[]
  /** [ids.length, vocab] */
  readonly logits: Float32Array
  /** 16 tokens, end tokens ignored. */
  readonly greedy: readonly number[]
}

/** The reference prompts of a fixture (1, 7 and 40 tokens), longest first. */
export function readReference(directory: string): ReferencePrompt[] {
  const bytes = readFileSync(join(directory, 'reference.safetensors'))
  const headerLength = Number(bytes.readBigUInt64LE(0))
  const header = JSON.parse(bytes.subarray(8, 8 + headerLength).toString()) as Record<
    string,
    { data_offsets: [number, number] }
  >
  const words = (name: string): ArrayBuffer => {
    const [from, to] = header[name]!.data_offsets
    return Uint8Array.from(bytes.subarray(8 + headerLength + from, 8 + headerLength + to)).buffer
  }
  return ['40', '7', '1'].map(n => ({
    ids: [...new Int32Array(words(`ids.${n}`))],
    logits: new Float32Array(words(`logits.${n}`)),
    greedy: [...new Int32Array(words(`greedy.${n}`))],
  }))
}

export const fixturePath = (name: string): string => join(FIXTURES, name)

/** Small enough that a run allocates little; room for every request of these tests at once. */
export const SMALL: GivenFlags = {
  dtype: 'float32',
  contextLength: 64,
  maxRunningRequests: 48,
  maxTotalTokens: 48 * 64,
  chunkedPrefillSize: 64,
  pageSize: 8,
  randomSeed: 0,
}

export const flagsFor = (modelPath: string, given: GivenFlags = {}): EngineFlags =>
  engineFlags({ ...SMALL, ...given, modelPath })

export const loadOneThread = (modelPath: string, given: GivenFlags = {}): Promise<OneThreadEngine> =>
  OneThreadEngine.load(flagsFor(modelPath, given))

/** Draws `maxTokens` tokens, greedily and past end tokens unless `sampling` says otherwise. */
export const drawing = (
  id: string,
  ids: readonly number[],
  maxTokens: number,
  sampling: Partial<SamplingParams> = {},
): RankRequest => {
  const params = { ...GREEDY, maxTokens, ignoreEos: true, ...sampling }
  return toRankRequest(id, { inputIds: ids, sampling: params }, params.seed ?? 0n, [])
}

/** The logits of every prompt position. */
export const wantingLogits = (id: string, ids: readonly number[]): RankRequest => ({
  ...drawing(id, ids, 1),
  maxTokens: 0,
  wantLogits: true,
})

/** For each prompt i: `logits.i` and `greedy.i`. */
export const bothKinds = (prompts: readonly ReferencePrompt[]): RankRequest[] =>
  prompts.flatMap(({ ids, greedy }, i) => [
    wantingLogits(`logits.${i}`, ids),
    drawing(`greedy.${i}`, ids, greedy.length),
  ])

/** Largest absolute difference. @throws when lengths differ or a value is not a number */
export function maxDifference(a: ArrayLike<number>, b: ArrayLike<number>): number {
  if (a.length !== b.length || a.length === 0) throw new Error(`${a.length} values against ${b.length}`)
  let worst = 0
  for (let i = 0; i < a.length; i++) {
    const difference = Math.abs(a[i]! - b[i]!)
    if (Number.isNaN(difference)) throw new Error(`value ${i} is ${a[i]} against ${b[i]}`)
    worst = Math.max(worst, difference)
  }
  return worst
}

/** Largest difference of all reference prompts' logits in `results`. */
export const worstLogits = (
  results: ReadonlyMap<string, OneThreadResult>,
  prompts: readonly { readonly logits: ArrayLike<number> }[],
): number => Math.max(...prompts.map(({ logits }, i) => maxDifference(results.get(`logits.${i}`)!.logits, logits)))

/** Smallest distance between the two largest logits over all rows: below ten tolerances a greedy token may flip. */
export function smallestGap(logits: ArrayLike<number>, vocab: number): number {
  let smallest = Number.POSITIVE_INFINITY
  for (let row = 0; row < logits.length; row += vocab) {
    let [first, second] = [Number.NEGATIVE_INFINITY, Number.NEGATIVE_INFINITY]
    for (let v = row; v < row + vocab; v++) {
      const value = logits[v]!
      if (value > first) [first, second] = [value, first]
      else if (value > second) second = value
    }
    smallest = Math.min(smallest, first - second)
  }
  return smallest
}

/** The 32-bit words of a result's logits, for comparisons of bits. */
export const bitsOf = (values: Float32Array): Uint32Array =>
  new Uint32Array(values.buffer, values.byteOffset, values.length)
