// Expert parallelism between GPUs, its kernels compiled as C++: several ranks of several blocks as fibers that take turns at random
// (common.cuh), against plain loops. Needs a C++ compiler and no GPU.
import { fileURLToPath } from 'node:url'
import { afterAll, beforeAll, describe, it } from 'vitest'
import { EmulatedKernels, filesOf, noCompiler } from '../emulated-kernels.js'

const here = fileURLToPath(new URL('.', import.meta.url))
const CASES = process.env['SWITCHYARD_TEST_FULL'] ? 200 : 20

describe.skipIf(noCompiler)('expert parallelism between emulated GPUs', () => {
  let emulated: EmulatedKernels
  beforeAll(() => {
    emulated = new EmulatedKernels(
      ['ep.cuh', 'row_tiles.cuh', 'ep_normal_sm90.cu', 'ep_low_latency.cuh', 'ep_slots_sm90.cu', 'ep_back_sm90.cu'],
      filesOf(here),
    )
  })
  afterAll(() => emulated.remove())

  it(`dispatches and combines in ${CASES} random groups, both modes, both parities, with dead members`, () => {
    emulated.compile('ep')
    emulated.expectOk('ep', [String(CASES)], CASES + 1)
  }, 300_000)
})
