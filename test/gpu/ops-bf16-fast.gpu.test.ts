// Operations on bf16 activations against float64, by the operations that runs on a GPU bind.
import { describe } from 'vitest'
import { useMemory } from '../../src/device/suite/bench.suite.js'
import { bf16Suite } from '../../src/device/suite/bf16.suite.js'
import { implementationOf, openDevice } from './device.js'

describe('CUDA kernels', () => {
  const implementation = implementationOf(openDevice())
  useMemory(implementation.lender)
  bf16Suite(implementation)
})
