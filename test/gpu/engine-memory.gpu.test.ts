// What a model had of a GPU's memory is free again when it is closed, load after load, with ranks in this thread and in their own.
// The figures are of the whole GPU: nothing else may take or free memory of it meanwhile.
import { afterAll, beforeEach, describe, expect, it } from 'vitest'
import { CudaContext } from '../../src/device/cuda/context.js'
import { Engine, GREEDY } from '../../src/engine/index.js'
import { OneThreadEngine } from '../../src/engine/one-thread.js'
import { drawing, flagsFor, type GivenFlags } from '../engine/harness.js'
import { collect } from '../engine/requests.js'
import { TEST_GPU } from './gpu.js'
import { requireIdle } from './idle.js'
import { ONE_RANK, SEVERAL_GPUS, TWO_RANKS } from './models.js'

const MIB = 2 ** 20
/** What the driver hands out memory in is 2 MiB; a leak of one model's weights alone would be 90. */
const SLACK = 16 * MIB
const CYCLES = 3

const gpus = [new CudaContext(TEST_GPU)]
if (SEVERAL_GPUS) gpus.push(new CudaContext(TEST_GPU + 1))
// Held to the end: what belongs to a context, and not to what is loaded in it, then stays the same.
afterAll(() => {
  for (const context of gpus) context[Symbol.dispose]()
})

beforeEach(() => requireIdle(gpus))

/** Of each GPU, by which it has fewer bytes free than `before`. */
const taken = (before: readonly number[]): number[] => free().map((bytes, i) => before[i]! - bytes)
const free = (): number[] =>
  gpus.map(context => {
    context.synchronize()
    return context.memory().free
  })

function expectEqual(bytes: readonly number[], expected: readonly number[]): void {
  for (const [gpu, count] of bytes.entries())
    expect(Math.abs(count - expected[gpu]!), `GPU ${gpu}: ${count} bytes taken, ${expected[gpu]}`).toBeLessThan(SLACK)
}

const ids = [3, 5, 7, 9, 11, 13]
const layouts: readonly { name: string; flags: GivenFlags; used: number }[] = [
  { name: 'one GPU', flags: ONE_RANK, used: 1 },
  ...(SEVERAL_GPUS ? [{ name: 'two GPUs', flags: TWO_RANKS, used: 2 }] : []),
]

/** Some GiB of cache, so that forgetting it could not be overlooked. */
const flagsOf = (given: GivenFlags) =>
  flagsFor('models/demo', { ...given, dtype: 'float32', contextLength: 256, pageSize: 64, maxTotalTokens: 1 << 20 })

describe.each(layouts)('$name', ({ flags, used }) => {
  it('ranks in this thread: all is free again after the run, and after the close', async () => {
    const before = free()
    const cycle = async () => {
      const engine = await OneThreadEngine.load(flagsOf(flags))
      const loaded = taken(before)
      const weights = engine.plan.weightPlaces.map(place => place.weightBytes)
      for (const [gpu, bytes] of weights.entries()) expect(loaded[gpu]).toBeGreaterThan(bytes)
      const requests = ids.map((id, i) => drawing(`${i}`, [id, id + 1], 8))
      const run = () =>
        engine.run(
          requests,
          requests.map((_, i) => i % used),
          1,
        )
      run()
      const first = taken(before)
      run()
      const again = taken(before)
      engine.close()
      return { loaded, first, again, closed: taken(before) }
    }
    // The first one also makes the driver take what it keeps for a context: room for stacks, code that it loads late.
    const warm = await cycle()
    console.info(`the driver keeps ${warm.closed.map(bytes => Math.round(bytes / MIB)).join(', ')} MiB`)
    for (let i = 0; i < CYCLES; i++) {
      const { loaded, first, again, closed } = await cycle()
      expectEqual(closed, warm.closed)
      // A run's cache and scratch are given back at its end, the weights stay.
      expectEqual(first, loaded)
      expectEqual(again, loaded)
    }
  })

  it('ranks in threads of their own: all is free again after the close, also with requests running', async () => {
    const before = free()
    const cycle = async () => {
      const engine = await Engine.start(flagsOf(flags))
      const started = taken(before)
      const lent = Number(engine.info()['lentBytes'])
      expect(started.reduce((a, b) => a + b, 0)).toBeGreaterThan(lent)
      const sampling = { ...GREEDY, maxTokens: 12, ignoreEos: true }
      await Promise.all(ids.map(id => collect(engine.generate({ inputIds: [id, id + 1], sampling }))))
      const endless = engine.generate({ inputIds: ids, sampling: { ...sampling, maxTokens: 240 } })
      const first = await endless[Symbol.asyncIterator]().next()
      expect(first.done).toBe(false)
      await engine.close()
      return { lent, closed: taken(before) }
    }
    const warm = await cycle()
    const kept = warm.closed.reduce((a, b) => a + b, 0)
    console.info(`of ${Math.round(warm.lent / MIB)} MiB lent, ${Math.round(kept / MIB)} are not free: the driver's own`)
    expect(warm.lent).toBeGreaterThan(1024 * MIB)
    expect(kept).toBeLessThan(warm.lent / 2)
    for (let i = 0; i < CYCLES; i++) {
      const { closed } = await cycle()
      expectEqual(closed, warm.closed)
    }
  })
})
