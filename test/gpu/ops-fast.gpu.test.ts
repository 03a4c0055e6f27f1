// The Ops suite against the operations that runs on a GPU bind, fast paths where f32 has them.
import { describe } from 'vitest'
import { opsSuite } from '../../src/device/ops.suite.js'
import { implementationOf, openDevice } from './device.js'

describe('CUDA kernels', () => {
  opsSuite(implementationOf(openDevice()))
})
