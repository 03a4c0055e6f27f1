// Whole models in GPU tests: one rank and two, engines that end with their test, and rows of logits of one engine along what another one drew.
import { afterEach } from 'vitest'
import { ENGINE_FLAGS } from '../../src/config/flags.js'
import { CudaDriver } from '../../src/device/cuda/driver.js'
import { requireLibraries } from '../../src/device/cuda/libraries.js'
import type { PlanOptions } from '../../src/engine/load-model.js'
import { OneThreadEngine, type OneThreadResult } from '../../src/engine/one-thread.js'
import type { RankRequest } from '../../src/scheduler/index.js'
import { EXPERTS_ON_TWO, flagsFor, type GivenFlags, maxDifference, wantingLogits } from '../engine/harness.js'
import { TEST_GPU } from './gpu.js'

/** Whether two ranks have a GPU each. */
export const SEVERAL_GPUS = new CudaDriver(requireLibraries().driver).get('cuDeviceGetCount') > TEST_GPU + 1

export const ONE_RANK: GivenFlags = { device: `cuda:${TEST_GPU}` }

/** A rank on each of two GPUs, or both on one: attention on each, experts divided. */
export const TWO_RANKS: GivenFlags = {
  device: `cuda:${TEST_GPU},${SEVERAL_GPUS ? TEST_GPU + 1 : TEST_GPU}`,
  ...EXPERTS_ON_TWO,
}

/** Flags as a command line has them. */
export const argumentsOf = (given: GivenFlags): string[] =>
  Object.entries(given).flatMap(([key, value]) => {
    const name = `--${ENGINE_FLAGS[key as keyof typeof ENGINE_FLAGS].name}`
    return value === true ? [name] : [name, String(value)]
  })

export type LoadModel = (path: string, flags: GivenFlags, options?: PlanOptions) => Promise<OneThreadEngine>

/** A loader whose engines let go of their GPUs after each test. */
export function modelLoader(): LoadModel {
  let open: OneThreadEngine[] = []
  afterEach(() => {
    for (const engine of open) engine.close()
    open = []
  })
  return async (path, flags, options = {}) => {
    const engine = await OneThreadEngine.load(flagsFor(path, flags), options)
    open.push(engine)
    return engine
  }
}

export type Results = ReadonlyMap<string, OneThreadResult>

/** @param route attention-DP rank of request i */
export const runAll = (engine: OneThreadEngine, requests: readonly RankRequest[], route = (_: number) => 0): Results =>
  engine.run(
    requests,
    requests.map((_, i) => route(i)),
    3,
  )

/** A prompt and what was drawn after it. */
export interface Drawn {
  readonly ids: readonly number[]
  readonly tokens: readonly number[]
}

/** Logits of every position of prompt and tokens together, computed as one prompt. */
export function logitsAlong(engine: OneThreadEngine, texts: readonly Drawn[]): Float32Array[] {
  const results = runAll(
    engine,
    texts.map(({ ids, tokens }, i) => wantingLogits(`${i}`, [...ids, ...tokens])),
  )
  return texts.map((_, i) => results.get(`${i}`)!.logits)
}

/** The rows that tokens were drawn from: `use(row, token)` for each. */
export function eachDraw<T>(
  { ids, tokens }: Drawn,
  logits: Float32Array,
  vocab: number,
  use: (row: Float32Array, token: number) => T,
): T[] {
  return tokens.map((token, t) => use(logits.subarray((ids.length - 1 + t) * vocab, (ids.length + t) * vocab), token))
}

/** Distances between the two best logits of each draw. */
export const gapsOf = (texts: readonly Drawn[], logits: readonly Float32Array[], vocab: number): number[][] =>
  texts.map((text, i) =>
    eachDraw(text, logits[i]!, vocab, row => {
      const [first, second] = [...row].sort((x, y) => y - x)
      return first! - second!
    }),
  )

export const gapsAlong = (engine: OneThreadEngine, texts: readonly Drawn[]): number[][] =>
  gapsOf(texts, logitsAlong(engine, texts), engine.plan.spec.vocabSize)

export interface Distances {
  /** Largest distance of the rows nearest to each other, up to this share of them. */
  at(share: number): number
  readonly rows: number
  readonly largestLogit: number
}

/** How far rows of logits lie apart, row by row. */
export function distances(found: readonly Float32Array[], expected: readonly Float32Array[], vocab: number): Distances {
  const apart: number[] = []
  let largestLogit = 0
  expected.forEach((theirs, i) => {
    if (found[i]!.length !== theirs.length) throw new Error(`${found[i]!.length} logits against ${theirs.length}`)
    for (let at = 0; at < theirs.length; at += vocab) {
      const row = theirs.subarray(at, at + vocab)
      apart.push(maxDifference(found[i]!.subarray(at, at + vocab), row))
      for (const value of row) largestLogit = Math.max(largestLogit, Math.abs(value))
    }
  })
  apart.sort((a, b) => a - b)
  return { at: share => apart[Math.floor(share * (apart.length - 1))]!, rows: apart.length, largestLogit }
}
