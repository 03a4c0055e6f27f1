// The conformance suite of Ops and Packer, run by every implementation: each operation against an oracle in double
// precision written for the suite, at odd sizes, with strides and offsets, in place; and the promise of the CPU device
// that a row's bits depend on that row alone.
import { attentionSuite } from './suite/attention.suite.js'
import { type Implementation, useMemory } from './suite/bench.suite.js'
import { elementwiseSuite } from './suite/elementwise.suite.js'
import { linearSuite } from './suite/linear.suite.js'
import { moeSuite } from './suite/moe.suite.js'
import { packingSuite } from './suite/packing.suite.js'
import { sampleSuite } from './suite/sample.suite.js'

export type { Implementation } from './suite/bench.suite.js'

/** Declares the tests for one implementation; call it inside a `describe`. */
export function opsSuite(implementation: Implementation): void {
  if (implementation.lender) useMemory(implementation.lender)
  packingSuite(implementation)
  linearSuite(implementation)
  elementwiseSuite(implementation)
  attentionSuite(implementation)
  moeSuite(implementation)
  sampleSuite(implementation)
}
