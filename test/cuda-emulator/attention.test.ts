// The attention kernels, compiled as C++ and run on an emulated block of threads (machine.h), against a double-precision oracle. Needs a
// C++ compiler and no GPU.
import { fileURLToPath } from 'node:url'
import { afterAll, beforeAll, describe, it } from 'vitest'
import { EmulatedKernels, filesOf, noCompiler } from '../emulated-kernels.js'

const here = fileURLToPath(new URL('.', import.meta.url))

describe.skipIf(noCompiler)('attention kernels on an emulated GPU', () => {
  let emulated: EmulatedKernels
  beforeAll(() => {
    const replacing = filesOf(here).filter(path => /attention[^/]*\.(cuh|cpp)$/.test(path))
    emulated = new EmulatedKernels(/^attention_.*\.cuh?$/, replacing)
    emulated.compile('attention')
  }, 120_000)
  afterAll(() => emulated.remove())

  it.each([
    ['decode', 16],
    ['prefill', 8],
    ['hopper', 6],
    ['latent', 6],
  ])('%s, %i cases', (part, cases) => emulated.expectOk('attention', [part], cases))
})
