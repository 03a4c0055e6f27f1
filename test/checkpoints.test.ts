// The test checkpoints themselves: derived ones hold what they say, random ones are shaped as the fixtures are.
import { readFileSync } from 'node:fs'
import { describe, expect, it } from 'vitest'
import { bf16ToNumber, e4m3ToNumber, halfToNumber, roundToBf16 } from '../src/device/cpu/number-formats.js'
import { readModelSpec } from '../src/formats/hf/index.js'
import { openCheckpoint } from '../src/formats/safetensors/index.js'
import { FIXTURES, f32Values, TestCheckpoints, tensorsOf } from './checkpoints.js'
import { fromBf16, fromE4m3, fromF16, toBf16, toE4m3, toF16 } from './number-encoding.js'
import { tensorShapes } from './random-checkpoints.js'

const ARCHITECTURES = [
  'deepseek_v2',
  'deepseek_v3',
  'qwen2_moe',
  'qwen3_moe',
  'mixtral',
  'olmoe',
  'glm4_moe',
  'gpt_oss',
] as const

describe('random checkpoints', () => {
  it.each([...ARCHITECTURES, 'deepseek_v3_yarn_noqlora'])(
    'the names and shapes of %s are those of its fixture',
    name => {
      const config = JSON.parse(readFileSync(`${FIXTURES}/${name}/config.json`, 'utf8')) as Record<string, unknown>
      const found = [...openCheckpoint(`${FIXTURES}/${name}`).tensors].map(
        ([tensor, { shape }]) => [tensor, shape] as const,
      )
      const sorted = (list: Iterable<readonly [string, readonly number[]]>) =>
        [...list].sort(([a], [b]) => (a < b ? -1 : 1))
      expect(sorted(tensorShapes(config))).toEqual(sorted(found))
    },
  )

  it.each(ARCHITECTURES)('%s of odd sizes is read', architecture => {
    using made = new TestCheckpoints()
    const dir = made.random({ architecture, config: { tie_word_embeddings: true } })
    const { spec } = readModelSpec(dir)
    expect(spec).toMatchObject({ hiddenSize: 80, vocabSize: 131, tieWordEmbeddings: true })
    expect(openCheckpoint(dir).tensors.has('lm_head.weight')).toBe(false)
  })
})

describe('derived checkpoints', () => {
  it('sharded and in old spelling: the same tensors, the same spec', () => {
    using made = new TestCheckpoints()
    for (const name of ARCHITECTURES) {
      const dir = made.derive(name, { shards: 3, oldSpelling: true })
      const [derived, fixture] = [openCheckpoint(dir), openCheckpoint(`${FIXTURES}/${name}`)]
      expect([...derived.tensors.keys()].sort()).toEqual([...fixture.tensors.keys()].sort())
      for (const tensor of ['model.norm.weight', 'lm_head.weight'])
        expect(derived.read(tensor)).toEqual(fixture.read(tensor))
      expect(readModelSpec(dir).spec).toEqual(readModelSpec(`${FIXTURES}/${name}`).spec)
      expect(readFileSync(`${dir}/config.json`, 'utf8')).not.toMatch(/rope_parameters|"dtype"/)
    }
  })

  it('tied and extended', () => {
    using made = new TestCheckpoints()
    expect(openCheckpoint(made.derive('mixtral', { tied: 'shared' })).tensors.has('lm_head.weight')).toBe(false)
    const copied = openCheckpoint(made.derive('mixtral', { tied: 'copied' }))
    expect(copied.read('lm_head.weight')).toEqual(copied.read('model.embed_tokens.weight'))
    const extended = openCheckpoint(made.derive('deepseek_v3', { nextn: true }))
    expect([...extended.tensors.keys()].filter(name => name.startsWith('model.layers.3.')).length).toBeGreaterThan(60)
  })

  it.each(['BF16', 'F16', 'F8_E4M3'] as const)('%s and its values as F32 agree, and are near the original', dtype => {
    using made = new TestCheckpoints()
    const block = [16, 24] as const
    const low = tensorsOf(openCheckpoint(made.derive('deepseek_v3', { dtype, block })))
    const high = tensorsOf(openCheckpoint(made.derive('deepseek_v3', { dtype, block, asF32: true })))
    const original = tensorsOf(openCheckpoint(`${FIXTURES}/deepseek_v3`))
    const name = 'model.layers.1.mlp.experts.3.down_proj.weight'
    const [rounded, exact] = [f32Values(high.get(name)!), f32Values(original.get(name)!)]
    const tolerance = { BF16: 2 ** -8, F16: 2 ** -11, F8_E4M3: 2 ** -4 }[dtype]
    const worst = Math.max(...rounded.map((v, i) => Math.abs(v - exact[i]!) / Math.max(Math.abs(exact[i]!), 0.02)))
    expect(worst).toBeGreaterThan(tolerance / 8)
    expect(worst).toBeLessThanOrEqual(tolerance * 1.01)
    expect(low.get(name)!.dtype).toBe(dtype)
    expect(low.has(`${name}_scale_inv`)).toBe(dtype === 'F8_E4M3')
    if (dtype === 'F8_E4M3') expect(low.get('model.layers.1.mlp.gate.weight')!.dtype).toBe('F32')
  })
})

describe('number formats', () => {
  it('encodings agree with the kernels on every code', () => {
    for (let code = 0; code < 0x7f; code++)
      for (const signed of [code, code | 0x80]) {
        expect(fromE4m3(signed)).toBe(e4m3ToNumber(signed))
        if (code > 0) expect(toE4m3(fromE4m3(signed))).toBe(signed)
      }
    for (let bits = 0; bits < 0x7c00; bits += 7) {
      expect(fromF16(bits)).toBe(halfToNumber(bits))
      expect(toF16(fromF16(bits))).toBe(bits)
    }
    for (let i = 0; i < 2000; i++) {
      const value = Math.fround(Math.sin(i) * 2 ** ((i % 40) - 20))
      expect(toBf16(value)).toBe(roundToBf16(value))
      expect(fromBf16(toBf16(value))).toBe(bf16ToNumber(toBf16(value)))
    }
  })
})
