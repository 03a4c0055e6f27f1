// The kernels of products, compiled as C++ and run on an emulated block of threads (../cuda-emulator/machine.h), against double precision.
// Needs a C++ compiler and no GPU.
import { fileURLToPath } from 'node:url'
import { afterAll, beforeAll, describe, it } from 'vitest'
import { EmulatedKernels, filesOf, noCompiler } from '../emulated-kernels.js'

const here = fileURLToPath(new URL('.', import.meta.url))
const KERNELS = [...['grouped_gemm_sm90.cu', 'grouped_gemm_mma.cu'], ...['expert_rows.cu', 'row_tiles.cuh', 'gemv.cu']]

describe.skipIf(noCompiler)('products on an emulated GPU', () => {
  let emulated: EmulatedKernels
  beforeAll(() => {
    emulated = new EmulatedKernels(KERNELS, filesOf(here))
  })
  afterAll(() => emulated.remove())

  it.each([
    ['products', 3 * 13 + 1],
    ['gemv', 2 * 11 + 1],
  ])('%s, %i cases', { timeout: 120_000 }, (program, cases) => {
    emulated.compile(program, { standard: 'c++20', warnings: false })
    emulated.expectOk(program, [], cases)
  })
})
