// What a wire shorter than f32 does to logits is what its rounding does, and no more. For each fixture and wire:
// - every prompt's logits are those of the oracle with exactly that rounding, except for elements so near to the point where
//   rounding turns that f32 arithmetic decides: they are searched for, counted and printed;
// - logits stay within 1.1 times the first-order bound from half a step of everything that travels (docs/dispatch.md).
// Experts that rounding makes a token choose otherwise are counted; the bound compares runs with equal experts.
import { describe, expect, it } from 'vitest'
import type { Place } from '../oracle/feed-forward.js'
import { Oracle } from '../oracle/index.js'
import { explain, Rounding, type Sensitivity, sensitivityOf, wireBound } from '../oracle/wire-effect.js'
import { WIRES, type Wire } from '../oracle/wires.js'
import { ROOM } from './dispatch-layouts.js'
import { bitsOf, fixturePath, loadOneThread, maxDifference, readReference, wantingLogits } from './harness.js'
import { MANY_RANKS_TOLERANCE } from './logits.suite.js'

const RANKS = 4
const FULL = process.env['SWITCHYARD_TEST_FULL'] === '1'
/** Tokens alone: independent rows through all layers. Then a few short sequences. */
const PROMPTS: readonly (readonly number[])[] = [
  ...Array.from({ length: FULL ? 160 : 40 }, (_, i) => [FULL ? i : i * 4]),
  ...Array.from({ length: 8 }, (_, i) => [i * 19 + 1, i * 7 + 3, 150 - i * 11]),
]
/** Tokens of the reference prompt that the bound is computed for: the work grows with their square. */
const BOUND_TOKENS = FULL ? 7 : 4

const plainly = { ranks: RANKS, send: (x: Float64Array) => x, sendBack: (x: Float64Array) => x }
const median = (values: readonly number[]): number => [...values].sort((a, b) => a - b)[values.length >> 1]!

export function dispatchWiresSuite(fixture: string): void {
  const directory = fixturePath(fixture)
  const oracle = new Oracle(directory)
  const { ids: long } = readReference(directory)[1]!
  const bounded = long.slice(0, BOUND_TOKENS)
  const sensitivities = new Map<string, Sensitivity>()

  /** The logits of all prompts, then of the bounded one. */
  const run = async (wire: Wire, deepepMode: 'normal' | 'low_latency') => {
    const engine = await loadOneThread(directory, {
      ...ROOM,
      ...{ moeA2aBackend: 'deepep', tpSize: RANKS, attnDpSize: 2, epSize: RANKS, deepepMode },
      deepepDispatcherOutputDtype: wire,
    })
    const requests = [...PROMPTS, bounded].map((ids, i) => wantingLogits(`${i}`, ids))
    const results = engine.run(
      requests,
      requests.map((_, i) => i % 2),
      0,
    )
    return requests.map(({ id }) => results.get(id)!.logits)
  }

  /** Choices of experts that rounding changes. */
  const rerouted = (ids: readonly number[], experts: Rounding['experts']): number => {
    let changed = 0
    const compare = (own: readonly number[], { layer, token }: Place) => {
      const other = experts.get(`${layer}.${token}`)!
      if (own.some(e => !other.includes(e))) changed++
      return own
    }
    oracle.logits(ids, { ...plainly, choose: compare })
    return changed
  }

  describe(`wires of ${fixture}`, () => {
    it.each(WIRES)(
      '%s',
      async wire => {
        const logits = await run(wire, 'normal')
        for (const [i, other] of (await run(wire, 'low_latency')).entries())
          expect(bitsOf(other)).toEqual(bitsOf(logits[i]!))

        let [turned, changed] = [0, 0]
        const effects: number[] = []
        for (const [i, ids] of PROMPTS.entries()) {
          const found = explain(
            oracle,
            ids,
            RANKS,
            wire,
            expected => maxDifference(logits[i]!, expected) < MANY_RANKS_TOLERANCE,
          )
          expect(found, `prompt ${i} agrees with exact rounding`).not.toBeNull()
          turned += found!.length
          effects.push(maxDifference(logits[i]!, oracle.logits(ids)))
          const rounding = new Rounding(RANKS, wire)
          oracle.logits(ids, rounding)
          changed += rerouted(ids, rounding.experts)
        }

        const rounding = new Rounding(RANKS, wire)
        oracle.logits(bounded, rounding)
        const key = JSON.stringify([...rounding.experts])
        const sensitivity = sensitivities.get(key) ?? sensitivityOf(oracle, bounded, RANKS, rounding.experts)
        sensitivities.set(key, sensitivity)
        const bound = wireBound(sensitivity, wire)
        let nearest = 0
        for (const [o, value] of logits.at(-1)!.entries()) {
          const difference = Math.abs(value - sensitivity.logits[o]!)
          const allowed = 1.1 * bound[o]!
          nearest = Math.max(nearest, difference / allowed)
          if (!(difference <= allowed)) expect.fail(`logit ${o} is off by ${difference}, the bound is ${allowed}`)
        }
        // A wire that does not round at all would stay within the bound, too.
        expect(median(effects)).toBeGreaterThan(5 * MANY_RANKS_TOLERANCE)
        console.info(
          `${fixture}, ${wire}: rounding moves logits by ${median(effects).toPrecision(2)} (median of prompts), at most ` +
            `${Math.max(...effects).toPrecision(2)}; ${turned} elements turned, ${changed} choices of experts changed in ` +
            `${PROMPTS.length} prompts; nearest to the bound: ${(100 * nearest).toFixed(0)}% of it`,
        )
      },
      120_000,
    )
  })
}
