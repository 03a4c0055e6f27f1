// Weights that hold no numbers: refused where they are found, or an error to the request, never a made-up token.
import { afterAll, describe, expect, it } from 'vitest'
import { engineFlags } from '../../src/config/flags.js'
import { GREEDY, startEngine } from '../../src/engine/index.js'
import { TestCheckpoints } from '../checkpoints.js'

const made = new TestCheckpoints()
afterAll(() => made[Symbol.dispose]())

const damaged = (tensor: string) =>
  made.derive('qwen3_moe', {
    edit: tensors => {
      const found = tensors.get(tensor)!
      new Float32Array(found.data.buffer, found.data.byteOffset, found.data.byteLength / 4)[3] = Number.NaN
    },
  })

describe('damaged weights', () => {
  it('ends a request with an error when its logits are no numbers', async () => {
    const engine = await startEngine(engineFlags({ modelPath: damaged('lm_head.weight'), dtype: 'float32' }))
    const run = async () => {
      for await (const _ of engine.generate({ inputIds: [1, 2, 3], sampling: { ...GREEDY, maxTokens: 4 } })) {
        // The error ends the stream.
      }
    }
    await expect(run()).rejects.toMatchObject({ code: 'SY_ENGINE_NOT_FINITE' })
    expect(engine.state()[0]!.running).toBe(0)
    await engine.close()
  })

  it('refuses a norm that is no number before a rank starts', async () => {
    const flags = engineFlags({ modelPath: damaged('model.norm.weight'), dtype: 'float32' })
    await expect(startEngine(flags)).rejects.toMatchObject({ code: 'SY_CHECKPOINT_NOT_FINITE', fields: { index: 3 } })
  })
})
