// The engine on WebAssembly kernels: reference logits and greedy tokens on one rank and with a worker thread a rank, the
// same bits as before when company changes, and models that do not fit the one memory.
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, afterEach, describe, expect, it } from 'vitest'
import { examine } from '../../src/cli/doctor.js'
import { wasmIsas } from '../../src/device/cpu/wasm-isa.js'
import { GREEDY, startEngine } from '../../src/engine/index.js'
import {
  bothKinds,
  fixturePath,
  flagsFor,
  loadOneThread,
  maxDifference,
  readReference,
  worstLogits,
} from './harness.js'
import { collect } from './requests.js'

const directory = mkdtempSync(join(tmpdir(), 'switchyard-wasm-'))
const hidden = process.env['SWITCHYARD_NO_ADDON']
afterAll(() => rmSync(directory, { recursive: true, force: true }))
afterEach(() => {
  if (hidden === undefined) delete process.env['SWITCHYARD_NO_ADDON']
  else process.env['SWITCHYARD_NO_ADDON'] = hidden
})

describe('WebAssembly kernels', () => {
  it.each(['deepseek_v3', 'mixtral', 'gpt_oss'])('%s on one rank', async fixture => {
    const path = fixturePath(fixture)
    const prompts = readReference(path)
    const engine = await loadOneThread(path, { kernels: 'wasm' })
    const requests = bothKinds(prompts)
    const results = engine.run(
      requests,
      requests.map(() => 0),
      0,
    )
    expect(worstLogits(results, prompts)).toBeLessThan(2e-5)
    for (const [i, { greedy }] of prompts.entries()) expect(results.get(`greedy.${i}`)!.tokens).toEqual(greedy)
    // Alone and in chunks: the same bits.
    const chunked = await loadOneThread(path, { kernels: 'wasm', chunkedPrefillSize: 3 })
    const [first] = requests
    const alone = chunked.run([first!], [0], 0).get(first!.id)!
    expect(Buffer.from(alone.logits.buffer).equals(Buffer.from(results.get(first!.id)!.logits.buffer))).toBe(true)
  })

  it('deepseek_v3 with four worker threads', async () => {
    const path = fixturePath('deepseek_v3')
    const prompts = readReference(path)
    const layout = { tpSize: 4, attnDpSize: 2, epSize: 4 } as const
    await using engine = await startEngine(flagsFor(path, { ...layout, kernels: 'wasm' }))
    expect(engine.info()['kernels']).toMatch(/^cpu \(wasm (simd128|relaxed-simd)\)$/)
    const sampling = { ...GREEDY, maxTokens: 16, ignoreEos: true }
    const [logits, drawn] = await Promise.all([
      Promise.all(prompts.map(({ ids }) => engine.logits(ids))),
      Promise.all(prompts.map(({ ids }) => collect(engine.generate({ inputIds: ids, sampling })))),
    ])
    for (const [i, prompt] of prompts.entries()) {
      expect(maxDifference(logits[i]!, prompt.logits)).toBeLessThan(2e-4)
      expect(drawn[i]!.tokens).toEqual(prompt.greedy)
    }
  }, 60_000)

  it('are what the engine and doctor take when the addon is hidden', async () => {
    process.env['SWITCHYARD_NO_ADDON'] = '1'
    const notices: string[] = []
    await using engine = await startEngine(flagsFor(fixturePath('mixtral')), { onNotice: text => notices.push(text) })
    expect(engine.info()['kernels']).toMatch(/^cpu \(wasm (simd128|relaxed-simd)\)$/)
    expect(notices.join()).toMatch(/No native CPU kernels.*WebAssembly/)
    const report = await examine(process.env)
    expect(report.kernels).toMatchObject({ kind: 'wasm', isa: wasmIsas().at(-1) })
    expect(report.checks.find(c => c.name === 'kernels')).toMatchObject({
      status: 'warn',
      found: expect.stringMatching(/^wasm \((simd128|relaxed-simd)\): .*SWITCHYARD_NO_ADDON/),
      fix: expect.stringContaining('SWITCHYARD_NO_ADDON'),
    })
  }, 60_000)

  it('refuse a model or a KV cache beyond 4 GiB before any rank starts', async () => {
    const config = JSON.parse(readFileSync(join(fixturePath('mixtral'), 'config.json'), 'utf8')) as object
    const large = { ...config, hidden_size: 4096, intermediate_size: 14336, num_attention_heads: 32 }
    writeFileSync(join(directory, 'config.json'), JSON.stringify({ ...large, num_local_experts: 8, head_dim: 128 }))
    const dummy = { loadFormat: 'dummy', kernels: 'wasm' } as const
    await expect(startEngine(flagsFor(directory, dummy))).rejects.toMatchObject({
      code: 'SY_DEVICE_WASM_MEMORY_FULL',
      message: expect.stringMatching(/the weights of .* needs \d+\.\d\d GiB/),
    })
    const huge = flagsFor(fixturePath('mixtral'), { kernels: 'wasm', maxTotalTokens: 100_000_000 })
    await expect(startEngine(huge)).rejects.toMatchObject({
      code: 'SY_ENGINE_NOT_ENOUGH_MEMORY',
      remedy: expect.stringMatching(/--max-total-tokens \d+ or less/),
    })
  })
})
