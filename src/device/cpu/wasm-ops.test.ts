// The Ops suite against the WebAssembly kernels in base vectors. A file of its own: all its memory comes from one WebAssembly memory.
import { describe } from 'vitest'
import { opsSuite } from '../ops.suite.js'
import { createCpuDevice } from './index.js'

describe('WebAssembly kernels, simd128', () => {
  const device = createCpuDevice({ kernels: 'wasm', isa: 'simd128' })
  opsSuite({ ops: device.ops, packer: device.packer, lender: device.createLender() })
})
