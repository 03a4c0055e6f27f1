// The Ops suite against the plain kernels of a GPU, in f32: operands lie in pinned host memory.
import { describe } from 'vitest'
import { opsSuite } from '../../src/device/ops.suite.js'
import { implementationOf, openDevice } from './device.js'

describe('plain CUDA kernels', () => {
  opsSuite(implementationOf(openDevice({ plain: true })))
})
