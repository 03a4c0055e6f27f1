// What the benchmark of a model on a GPU counts without one: bytes and operations of Qwen3-30B-A3B's shape.
import { describe, expect, it } from 'vitest'
import { type EngineFlags, engineFlags } from '../../config/flags.js'
import { ReferencePacker } from '../../device/cpu/index.js'
import { planModel } from '../../engine/load-model.js'
import { decodeStepBytes } from './step-bytes.js'
import { prefillFlop } from './step-flop.js'

const planOf = (given: Partial<EngineFlags> = {}) =>
  planModel(
    engineFlags({ modelPath: 'bench/models/qwen3-30b-a3b', contextLength: 8192, maxTotalTokens: 8192, ...given }),
    {
      packer: new ReferencePacker(),
      memoryLimit: Number.POSITIVE_INFINITY,
      requireMemory: () => {},
      accelerator: {
        kind: 'cuda',
        memory: () => ({ free: 140e9, total: 141e9 }),
        fractionStatic: 0.85,
        gpuOfRank: rank => rank,
      },
    },
  )
const plan = planOf()
const program = plan.programs[0]![0]!

describe("Qwen3-30B-A3B's shape", () => {
  it('has its weights and cache in bfloat16', () => {
    expect([plan.dtype, plan.activation]).toEqual(['bf16', 'bf16'])
    // 30.5 billion parameters; routers in float32.
    expect(plan.weightBytes / 2e9).toBeGreaterThan(30.5)
    expect(plan.weightBytes / 2e9).toBeLessThan(30.6)
  })

  it.each([
    [1, 670],
    [32, 2400],
    [128, 7850],
  ])('%d streams of 512 tokens are limited to about %d tokens/s by 4.1 TB/s', (batch, limit) => {
    const kvBytesPerToken = 48 * 2 * 4 * 128 * 2
    const { total } = decodeStepBytes(program, plan.dtype, batch, 512, kvBytesPerToken)
    const tokensPerSecond = batch / (total / 4.1e12)
    expect(Math.abs(tokensPerSecond / limit - 1)).toBeLessThan(0.05)
  })

  it('needs some 6.5 GFLOP a prompt token, and more for attention', () => {
    const flop = prefillFlop(program, 4, 4096)
    // Parameters that a token visits, without embedding and output head: 2.72 billion.
    const weights = 2 * 48 * (2048 * 5120 + 4096 * 2048 + 2048 * 128 + 8 * 3 * 768 * 2048) * 4 * 4096
    const attention = 48 * 4 * ((4096 * 4097) / 2) * 32 * 256 * 2
    const head = 2 * 4 * 2048 * 151936
    expect(flop).toBe(weights + attention + head)
  })

  it('on two GPUs: each reads all but the experts and half of those, and the operations are the same in all', () => {
    const layout = { tpSize: 2, attnDpSize: 2, epSize: 2, moeA2aBackend: 'deepep', enableDpLmHead: true } as const
    const { programs, dtype } = planOf({ ...layout, moeDenseTpSize: 1 })
    const bytes = (of: typeof program, own: number) => decodeStepBytes(of, dtype, 32, 512, 1000, own)
    const [one, half] = [bytes(program, 32), bytes(programs[0]![0]!, 16)]
    const experts = 48 * 128 * (1 - (1 - 8 / 128) ** 32) * 3 * 768 * 2048 * 2
    expect(Math.abs((one.weights - half.weights) / (experts / 2) - 1)).toBeLessThan(1e-6)
    expect([one.kv, half.kv]).toEqual([32 * 512 * 1000, 16 * 512 * 1000])
    expect(prefillFlop(programs[0]![0]!, 4, 4096)).toBe(prefillFlop(program, 4, 4096))
  })
})
