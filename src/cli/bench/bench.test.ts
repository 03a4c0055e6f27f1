// What bench engine counts: speeds from streams that overlap, and the bytes a decode step must read.
import { describe, expect, it } from 'vitest'
import { byteTokenizer, EchoEngine } from '../../../test/echo-engine.js'
import type { GenerationRequest } from '../../engine/request.js'
import type { Program } from '../../program/index.js'
import { measure, speedOf } from './run.js'
import { decodeStepBytes, expectedExperts } from './step-bytes.js'

describe('speeds', () => {
  it('count prompts until all have begun, and decoding only while all decode', () => {
    const load = { batch: 2, promptTokens: 10, outputTokens: 4, seed: 0 }
    const tracks = [{ at: [110, 120, 130, 140] }, { at: [120, 130, 140, 150] }]
    const speed = speedOf(load, tracks, 100)
    // 20 prompt tokens in 20 ms; from 120 to 140 ms two tokens of each stream; a step is 10 ms.
    expect(speed.promptTokensPerSecond).toBeCloseTo(1000)
    expect(speed.decodeTokensPerSecond).toBeCloseTo(200)
    expect(speed.decodeStepMs).toBeCloseTo(10)
    expect(speed.firstTokenMs).toBeCloseTo(15)
  })

  it('count all time when streams never ran together', () => {
    const load = { batch: 2, promptTokens: 1, outputTokens: 3, seed: 0 }
    const speed = speedOf(load, [{ at: [10, 20, 30] }, { at: [40, 50, 60] }], 0)
    expect(speed.decodeTokensPerSecond).toBeCloseTo(4 / 0.05)
  })

  it('come from real streams', async () => {
    const engine = new EchoEngine({ stepMs: 2 })
    const speed = await measure(engine, { batch: 3, promptTokens: 8, outputTokens: 6, seed: 1 }, () =>
      performance.now(),
    )
    expect(engine.requests.map(r => [r.inputIds.length, r.sampling.maxTokens, r.sampling.ignoreEos])).toEqual(
      Array(3).fill([8, 6, true]),
    )
    expect(new Set(engine.requests.map(r => r.inputIds.join())).size).toBe(3)
    expect(speed.decodeTokensPerSecond).toBeGreaterThan(0)
  })

  it('fail with the error of a refused request, and leave the gate open', async () => {
    const refused = byteTokenizer.encode('REFUSE', { addSpecialTokens: false })
    const engine = new (class extends EchoEngine {
      override generate(request: GenerationRequest) {
        return super.generate({ ...request, inputIds: refused })
      }
    })()
    const gate: string[] = []
    const load = { batch: 2, promptTokens: 8, outputTokens: 6, seed: 1 }
    const measured = measure(engine, load, () => performance.now(), {
      pause: () => gate.push('pause'),
      resume: () => gate.push('resume'),
    })
    await expect(measured).rejects.toMatchObject({ code: 'SY_ECHO_REFUSED' })
    expect(gate).toEqual(['pause', 'resume'])
  })
})

describe('bytes of a decode step', () => {
  const ref = { buffer: 'b', column: 0, width: 1 }
  const common = { layer: 0, rows: 'tokens', label: '', yieldBefore: false } as const
  const piece = { tensor: 't', shape: [1], rows: { from: 0, count: 1 } }
  const matrix = (name: string, n: number, k: number, count: number, precision: 'model' | 'f32' = 'model') =>
    ({ form: 'matrix', name, n, k, precision, pieces: Array(count).fill([piece]) }) as const
  const program: Pick<Program, 'operations'> = {
    operations: [
      { ...common, kind: 'embed', args: { out: ref, ids: ref, table: 'table' } },
      { ...common, kind: 'linear', args: { out: ref, x: ref, weight: 'router' } },
      {
        ...common,
        kind: 'experts',
        args: {
          out: ref,
          x: ref,
          ids: ref,
          weights: ref,
          scratch: ref,
          topK: 2,
          gateUp: 'gu',
          down: 'd',
          activation: { kind: 'silu' },
        },
      },
      { ...common, kind: 'linear', args: { out: ref, x: ref, weight: 'table' } },
    ],
  }
  const weights = {
    weights: [
      matrix('table', 100, 7, 1),
      matrix('router', 8, 7, 1, 'f32'),
      matrix('gu', 16, 8, 8),
      matrix('d', 8, 16, 8),
    ],
    skip: () => false,
  }

  it('are those of the packed weights each operation reads', () => {
    const model = { program: program as Program, weights }
    // Rows are padded to 16, bf16 columns to 2. The table counts once: as the output head, not as the embedding.
    const table = 112 * 8 * 2
    const router = 16 * 7 * 4
    const expert = 16 * 8 * 2 + 16 * 16 * 2
    expect(decodeStepBytes(model, 'bf16', 1, 0, 0)).toEqual({
      weights: table + router + 2 * expert,
      kv: 0,
      total: table + router + 2 * expert,
    })
    expect(decodeStepBytes(model, 'f32', 1, 10, 12).kv).toBe(120)
    expect(decodeStepBytes(model, 'bf16', 10_000, 0, 0).weights).toBe(table + router + 8 * expert)
  })

  it('expect distinct experts as even routing draws them', () => {
    expect(expectedExperts(8, 2, 1)).toBeCloseTo(2)
    expect(expectedExperts(8, 2, 2)).toBeCloseTo(3.5)
  })
})
