// Small kernels, compiled as C++ and run on an emulated block of threads (machine.h), against plain computations. Needs a C++
// compiler and no GPU.
import { fileURLToPath } from 'node:url'
import { afterAll, beforeAll, describe, it } from 'vitest'
import { EmulatedKernels, filesOf, noCompiler } from '../emulated-kernels.js'

const small = fileURLToPath(new URL('small', import.meta.url))
const KERNELS = [
  'elements.cuh',
  'sample_row.cuh',
  'sample_radix.cuh',
  'sample.cu',
  'router.cu',
  'fused_qk.cu',
  'norm.cu',
]

describe.skipIf(noCompiler)('small kernels on an emulated GPU', () => {
  let emulated: EmulatedKernels
  beforeAll(() => {
    emulated = new EmulatedKernels(KERNELS, filesOf(small))
  })
  afterAll(() => emulated.remove())

  it.each([
    ['sample', 46, []],
    // So short that what one block would list and sort is selected by radix.
    ['sample', 46, ['-DSAMPLE_LIST=16']],
    ['router', 46, []],
    ['rows', 32, []],
  ])(
    '%s, %i cases %j',
    (name, cases, defines) => {
      emulated.compile(name, { defines })
      emulated.expectOk(name, [], cases)
    },
    180_000,
  )
})
