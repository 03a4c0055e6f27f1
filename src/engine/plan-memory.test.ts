// What expert buffers take of the memory that KV caches get.
import { describe, expect, it } from 'vitest'
import { engineFlags } from '../config/flags.js'
import { planModel } from './load-model.js'
import { openDevice } from './open-device.js'
import { bytesOfExpertBuffers } from './plan-memory.js'
import { kvBytesPerToken } from './sizing.js'

const MODEL = 'test/fixtures/checkpoints/deepseek_v3'
const layout = { modelPath: MODEL, tpSize: 2, attnDpSize: 2, epSize: 2, pageSize: 1 } as const

/** A plan on a device that can lend `memoryLimit` bytes. */
const planned = (given: Parameters<typeof engineFlags>[0], memoryLimit: number) => {
  const flags = engineFlags({ ...layout, ...given })
  return planModel(flags, { ...openDevice(flags), memoryLimit })
}

describe('memory of a plan', () => {
  const limit = 64 * 2 ** 20
  const many = { maxRunningRequests: 4096, chunkedPrefillSize: 64 } as const

  it('leaves KV caches what expert buffers leave', () => {
    const none = planned(many, limit)
    const deepep = planned({ ...many, moeA2aBackend: 'deepep' }, limit)
    const buffers = bytesOfExpertBuffers(deepep.expertBuffer!)
    expect(buffers).toBeGreaterThan(2 ** 20)
    // A quarter of what is free; fewer tokens than running requests could need, or memory would not decide.
    const bytesPerToken = 2 * kvBytesPerToken(none.spec, 1, 4)
    expect(none.limits.kvSlots).toBeLessThan(many.maxRunningRequests * none.limits.contextLength)
    expect(none.limits.kvSlots).toBe(Math.floor((limit - none.weightBytes) / 4 / bytesPerToken))
    expect(deepep.limits.kvSlots).toBe(Math.floor((limit - deepep.weightBytes - buffers) / 4 / bytesPerToken))
  })

  it('refuses expert buffers that leave nothing, by their name', () => {
    const large = { ...many, chunkedPrefillSize: 65536, moeA2aBackend: 'deepep', deepepMode: 'normal' } as const
    expect(() => planned(large, limit)).toThrow(/dispatch between ranks .* needs .* of memory/)
    expect(planned({ ...large, moeA2aBackend: 'none' }, 2 ** 30).limits.kvSlots).toBeGreaterThan(0)
  })
})
