// Attention of any widths, compiled as C++ with the macros that the host chooses for a shape and run on an emulated block of threads (machine.h),
// against a double-precision oracle. Needs a C++ compiler and no GPU. SWITCHYARD_TEST_FULL: all shapes; else one of each way through the kernels.
import { fileURLToPath } from 'node:url'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { type AnyShape, anyKernel } from '../../src/device/cuda/ops/attention-any-layout.js'
import { EmulatedKernels, filesOf, noCompiler } from '../emulated-kernels.js'

const here = fileURLToPath(new URL('.', import.meta.url))
const HOPPER = { sharedBytesPerBlock: 227 << 10, sharedBytesPerSm: 228 << 10 }

const shape = (
  heads: number,
  kvHeads: number,
  qkWidth: number,
  vWidth: number,
  more: Partial<AnyShape> = {},
): AnyShape => {
  const type = more.type ?? 'bf16'
  const access = type === 'bf16' ? 8 : 4
  return {
    ...{ heads, kvHeads, qkWidth, vWidth, type, access, quads: vWidth % 4 === 0 },
    ...{ keyOffset: access, valueOffset: access + kvHeads * qkWidth },
    ...more,
  }
}
/** The value is the beginning of the key. */
const latent = { keyOffset: 8, valueOffset: 8 }

describe.skipIf(noCompiler)('attention of any widths on an emulated GPU', () => {
  let emulated: EmulatedKernels
  beforeAll(() => {
    const replacing = filesOf(here).filter(path => /attention[^/]*\.(cuh|cpp)$/.test(path))
    emulated = new EmulatedKernels(/^attention_.*\.cuh?$/, replacing)
  })
  afterAll(() => emulated.remove())

  const shapes: [string, string, AnyShape][] = [
    ['the latent of the demo', 'mma', shape(8, 1, 80, 64, latent)],
    ['20 heads of a latent, in two blocks', 'mma', shape(20, 1, 40, 24, latent)],
    ['grouped heads of 96', 'mma', shape(6, 2, 96, 96)],
    ['keys wider than values', 'mma', shape(2, 2, 192, 128)],
    ['heads of 256', 'mma', shape(9, 1, 256, 256)],
    ['widths of four', 'mma', shape(5, 1, 100, 52, { access: 4 })],
    ['even widths', 'mma', shape(4, 2, 18, 30, { access: 2, quads: false })],
    ['odd widths', 'mma', shape(3, 1, 19, 7, { access: 1 })],
    ['odd places of a latent', 'mma', shape(6, 1, 40, 32, { ...latent, access: 1, quads: false })],
    ['f32, the latent of the demo', 'lanes', shape(8, 1, 80, 64, { ...latent, type: 'f32' })],
    ['f32, heads of 128', 'lanes', shape(5, 1, 128, 128, { type: 'f32' })],
    ['f32, odd widths', 'lanes', shape(3, 1, 19, 7, { type: 'f32', access: 1 })],
    ['f32, even widths, many heads', 'lanes', shape(11, 1, 14, 10, { type: 'f32', access: 2, quads: false })],
    ['f32, a wide latent', 'lanes', shape(3, 1, 576, 512, { ...latent, type: 'f32' })],
    ['wide heads of bf16', 'lanes', shape(4, 2, 320, 512)],
    ['wide odd heads of bf16', 'lanes', shape(1, 1, 301, 77, { access: 1 })],
  ]
  const short = [
    'the latent of the demo',
    'grouped heads of 96',
    'odd widths',
    'f32, odd widths',
    'wide odd heads of bf16',
  ]
  it.each(shapes.filter(([name]) => process.env['SWITCHYARD_TEST_FULL'] || short.includes(name)))(
    '%s: %s',
    (_, walk, s) => {
      const kernel = anyKernel(s, HOPPER)!
      expect(kernel.name).toBe(`attention_any_${walk}`)
      const macros = { ...kernel.defines, TEST_HEADS: s.heads, TEST_KV_HEADS: s.kvHeads }
      emulated.compile('attention_any', {
        defines: Object.entries(macros).map(([name, value]) => `-D${name}=${value}`),
      })
      emulated.expectOk('attention_any', [], 9)
    },
    180_000,
  )
})
