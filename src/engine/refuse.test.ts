// What an accelerator does not run yet is refused by name, before a GPU is looked for where that is possible, and a machine
// without one says what is missing.
import { describe, expect, it } from 'vitest'
import { fixturePath, flagsFor, EXPERTS_ON_TWO as TWO } from '../../test/engine/harness.js'
import { ConfigError } from '../config/config-errors.js'
import { ReferencePacker } from '../device/cpu/index.js'
import { CudaError } from '../device/cuda/errors.js'
import { EngineError } from './errors.js'
import { planModel } from './load-model.js'
import type { PlanningDevice } from './node-device.js'
import { deviceChoice, openDevice } from './open-device.js'

const GIB = 2 ** 30
const gpu = (free = 70 * GIB): PlanningDevice => ({
  packer: new ReferencePacker(),
  memoryLimit: Number.POSITIVE_INFINITY,
  requireMemory: () => {},
  accelerator: { kind: 'cuda', memory: () => ({ free, total: 80 * GIB }), fractionStatic: 0.85 },
})
const plan = (fixture: string, given: Parameters<typeof flagsFor>[1] = {}, free?: number) =>
  planModel(flagsFor(fixturePath(fixture), given), gpu(free))

const failure = (run: () => unknown): Error & { code?: string; remedy?: string } => {
  try {
    run()
  } catch (error) {
    return error as Error
  }
  throw new Error('nothing was thrown')
}

describe('on an accelerator', () => {
  it.each([
    ['qwen3_moe', { tpSize: 2 }, ConfigError, '--tp-size 2 --attn-dp-size 1 --ep-size 1 with --device cuda'],
    ['qwen3_moe', { ...TWO, moeA2aBackend: 'none' }, ConfigError, '--moe-a2a-backend none and more than one rank'],
    ['qwen3_moe', { ...TWO, enableDpLmHead: false }, ConfigError, '--tp-size 2 without --enable-dp-lm-head'],
    ['deepseek_v3', { ...TWO, moeDenseTpSize: null }, ConfigError, '--tp-size 2 without --moe-dense-tp-size 1'],
    ['qwen3_moe', { ...TWO, deepepDispatcherOutputDtype: 'fp8' }, ConfigError, '--deepep-dispatcher-output-dtype fp8'],
    ['qwen3_moe', { moeA2aBackend: 'deepep' }, ConfigError, '--moe-a2a-backend deepep with --device cuda'],
    ['gpt_oss', {}, EngineError, 'gpt_oss do not run with --device cuda'],
    ['glm4_moe', {}, EngineError, 'glm4_moe do not run with --device cuda'],
  ] as const)('%s with %j is refused', (fixture, given, type, text) => {
    const error = failure(() => plan(fixture, given))
    expect(error).toBeInstanceOf(type)
    expect(error.message).toContain(text)
  })

  it('activations are as wide as weights; steps overlap and graphs are captured unless flags say otherwise', () => {
    expect(plan('qwen3_moe')).toMatchObject({ dtype: 'f32', activation: 'f32', overlap: true })
    expect(plan('qwen3_moe', { dtype: 'bfloat16' })).toMatchObject({ dtype: 'bf16', activation: 'bf16' })
    expect(plan('qwen3_moe').graphBatches.at(-1)).toBe(48)
    const off = plan('qwen3_moe', { disableOverlapSchedule: true, disableCudaGraph: true })
    expect(off).toMatchObject({ overlap: false, graphBatches: [] })
  })

  it('the KV cache takes its share of the memory less what others hold', () => {
    const large = { maxTotalTokens: null, maxRunningRequests: 60_000, contextLength: 256 } as const
    const tokens = (free: number, memFractionStatic: number | null = null) =>
      plan('qwen3_moe', { ...large, memFractionStatic }, free).limits.kvSlots
    const perToken = 4 * 3 * 2 * 2 * 16
    const expected = (bytes: number) => Math.floor(bytes / perToken / 8) * 8
    const { weightBytes } = plan('qwen3_moe')
    const wide = 60_000 * 256
    expect(tokens(80 * GIB)).toBe(Math.min(wide, expected(0.85 * 80 * GIB - weightBytes)))
    expect(tokens(16 * GIB)).toBe(Math.min(wide, expected(0.85 * 80 * GIB - 64 * GIB - weightBytes)))
    expect(tokens(16 * GIB)).toBeLessThan(wide)
    expect(tokens(16 * GIB, 0.81)).toBeLessThan(tokens(16 * GIB))
    expect(failure(() => tokens(12 * GIB - 1000)).message).toContain('one page of the KV cache')
  })
})

describe('--device', () => {
  const choice = (given: Parameters<typeof flagsFor>[1]) => deviceChoice(flagsFor('x', given))

  it('names a GPU by itself or with --base-gpu-id, but not two', () => {
    expect(choice({})).toEqual({ kind: 'cpu' })
    expect(choice({ device: 'cuda' })).toEqual({ kind: 'cuda', ordinals: [0] })
    expect(choice({ device: 'cuda:3' })).toEqual({ kind: 'cuda', ordinals: [3] })
    expect(choice({ device: 'cuda', baseGpuId: 2 })).toEqual({ kind: 'cuda', ordinals: [2] })
    expect(choice({ device: 'cuda:1', tpSize: 3 })).toEqual({ kind: 'cuda', ordinals: [1, 2, 3] })
    expect(choice({ device: 'cuda:0,0', tpSize: 2 })).toEqual({ kind: 'cuda', ordinals: [0, 0] })
    expect(failure(() => choice({ device: 'cuda:0,1', tpSize: 4 })).code).toBe('SY_CONFIG_CONFLICT')
    expect(failure(() => choice({ device: 'cuda:3', baseGpuId: 2 })).code).toBe('SY_CONFIG_CONFLICT')
  })

  it('says what is missing where no GPU can be used', () => {
    const before = process.env['SWITCHYARD_NO_CUDA']
    process.env['SWITCHYARD_NO_CUDA'] = '1'
    try {
      const error = failure(() => openDevice(flagsFor('models/demo', { device: 'cuda' })))
      expect(error).toBeInstanceOf(CudaError)
      expect(error.code).toBe('SY_CUDA_UNAVAILABLE')
      expect(error.remedy).toContain('switchyard doctor')
    } finally {
      if (before === undefined) delete process.env['SWITCHYARD_NO_CUDA']
      else process.env['SWITCHYARD_NO_CUDA'] = before
    }
  })

  it('fake routing is for one expert-parallel rank', () => {
    const cpu = openDevice(flagsFor('x'))
    const flags = flagsFor(fixturePath('qwen3_moe'), { tpSize: 2, epSize: 2, epDispatchAlgorithm: 'fake' })
    expect(failure(() => planModel(flags, cpu)).message).toContain('--ep-dispatch-algorithm fake')
  })
})
