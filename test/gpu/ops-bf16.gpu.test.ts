// Operations on bf16 activations against float64, by the plain kernels of a GPU.
import { describe } from 'vitest'
import { useMemory } from '../../src/device/suite/bench.suite.js'
import { bf16Suite } from '../../src/device/suite/bf16.suite.js'
import { implementationOf, openDevice } from './device.js'

describe('plain CUDA kernels', () => {
  const implementation = implementationOf(openDevice({ plain: true }))
  useMemory(implementation.lender)
  bf16Suite(implementation)
})
