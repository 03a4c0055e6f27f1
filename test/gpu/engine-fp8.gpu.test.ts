// Checkpoints in block FP8 on a GPU: dequantised on the way there, whatever blocks cut rows and columns into. Logits against the CPU's,
// and bit for bit those of the same values stored as F32.
import { afterAll, describe, expect, it } from 'vitest'
import { openCheckpoint } from '../../src/formats/safetensors/index.js'
import { type Derivation, TestCheckpoints } from '../checkpoints.js'
import { bitsOf, bothKinds, fixturePath, type GivenFlags, readReference, wantingLogits } from '../engine/harness.js'
import { bf16Bound } from './agreement.js'
import { TEST_GPU } from './gpu.js'
import { distances, modelLoader, runAll } from './models.js'

const CUDA = `cuda:${TEST_GPU}`
const F32_TOLERANCE = 1e-3

const load = modelLoader()
const made = new TestCheckpoints()
afterAll(() => made[Symbol.dispose]())

const prompts = readReference(fixturePath('deepseek_v3'))

/** Logits of all prompts. */
async function logitsOf(directory: string, flags: GivenFlags) {
  const engine = await load(directory, flags)
  const results = runAll(
    engine,
    prompts.map(({ ids }, i) => wantingLogits(`${i}`, ids)),
  )
  const { vocabSize, layers, fp8Block } = engine.plan.spec
  return { logits: prompts.map((_, i) => results.get(`${i}`)!.logits), vocabSize, layers: layers.length, fp8Block }
}

const SOURCES = [
  ['deepseek_v3', [16, 16]],
  // Blocks that end in the middle of rows and columns, and of what is packed as one.
  ['deepseek_v3', [24, 40]],
  ['qwen3_moe', [128, 128]],
  ['mixtral', [24, 40]],
] as const satisfies [string, Derivation['block']][]

describe.each(SOURCES)('%s in FP8, blocks of %j', (fixture, block) => {
  const fp8 = made.derive(fixture, { dtype: 'F8_E4M3', block })
  const wide = made.derive(fixture, { dtype: 'F8_E4M3', block, asF32: true })

  it('is a checkpoint in FP8 whose values are not those of the fixture', async () => {
    const dtypes = [...openCheckpoint(fp8).tensors.values()].map(({ dtype }) => dtype)
    expect(dtypes.filter(dtype => dtype === 'F8_E4M3').length).toBeGreaterThan(10)
    const [quantised, plain] = [
      await logitsOf(fp8, { device: CUDA }),
      await logitsOf(fixturePath(fixture), { device: CUDA }),
    ]
    expect([quantised.fp8Block, plain.fp8Block]).toEqual([block, null])
    expect(distances(quantised.logits, plain.logits, plain.vocabSize).at(0.5)).toBeGreaterThan(10 * F32_TOLERANCE)
  })

  it('float32: the logits of the CPU', async () => {
    const [gpu, cpu] = [await logitsOf(fp8, { device: CUDA }), await logitsOf(fp8, { device: 'cpu' })]
    const { at } = distances(gpu.logits, cpu.logits, cpu.vocabSize)
    console.info(`${fixture}, blocks of ${block}: rows differ by ${at(1).toExponential(2)}`)
    expect(at(1)).toBeLessThan(F32_TOLERANCE)
  })

  it('bfloat16: the logits of the CPU within the roundings of activations', async () => {
    // Experts drawn by row and position are the same on both; chosen ones may differ after a rounding.
    for (const [how, given] of [
      ['drawn', { epDispatchAlgorithm: 'fake' }],
      ['chosen', {}],
    ] satisfies [string, GivenFlags][]) {
      const flags: GivenFlags = { ...given, dtype: 'bfloat16' }
      const [gpu, cpu] = [
        await logitsOf(fp8, { ...flags, device: CUDA }),
        await logitsOf(fp8, { ...flags, device: 'cpu' }),
      ]
      const { at, largestLogit } = distances(gpu.logits, cpu.logits, cpu.vocabSize)
      const bound = bf16Bound(largestLogit, cpu.layers)
      console.info(
        `${fixture} bf16, blocks of ${block}, experts ${how}: rows differ by ${at(0.5).toPrecision(3)} (median), ` +
          `${at(1).toPrecision(3)} (all); bound ${bound.toPrecision(3)}`,
      )
      expect(at(how === 'drawn' ? 1 : 0.5)).toBeLessThan(bound)
    }
  })

  it.each(['float32', 'bfloat16'] as const)('%s: the bits of the same values stored as F32', async dtype => {
    const outputs = async (directory: string) => {
      const results = runAll(await load(directory, { device: CUDA, dtype }), bothKinds(prompts))
      return [...results.values()].map(({ tokens, logits }) => [tokens, bitsOf(logits)])
    }
    expect(await outputs(fp8)).toEqual(await outputs(wide))
  })
})
