// The Ops suite against the WebAssembly kernels with fused multiply-adds. A file of its own, as wasm-ops.test.ts.
import { describe } from 'vitest'
import { opsSuite } from '../ops.suite.js'
import { createCpuDevice } from './index.js'

describe('WebAssembly kernels, relaxed-simd', () => {
  const device = createCpuDevice({ kernels: 'wasm', isa: 'relaxed-simd' })
  opsSuite({ ops: device.ops, packer: device.packer, lender: device.createLender() })
})
