// The Ops suite against the reference and against native kernels of every instruction set this processor runs.
import { describe } from 'vitest'
import { opsSuite } from '../ops.suite.js'
import { createCpuDevice } from './index.js'

describe('reference kernels', () => {
  opsSuite(createCpuDevice({ kernels: 'reference' }))
})

describe.each(createCpuDevice({ kernels: 'reference' }).kernels.available)('native kernels, %s', isa => {
  opsSuite(createCpuDevice({ kernels: 'native', isa }))
})
