// What `bench engine` reports of a model on one GPU and on two: a traced step with its launches for every batch, of one of the ranks.
import { describe, expect, it } from 'vitest'
import { benchEngineCuda, cudaBenchText } from '../../src/cli/bench/engine-cuda.js'
import { captureIo } from '../capture-io.js'
import { flagsFor, type GivenFlags } from '../engine/harness.js'
import { ONE_RANK, SEVERAL_GPUS, TWO_RANKS } from './models.js'

const layouts: readonly { name: string; flags: GivenFlags }[] = [
  { name: 'one GPU', flags: ONE_RANK },
  ...(SEVERAL_GPUS ? [{ name: 'two GPUs', flags: TWO_RANKS }] : []),
]

describe.each(layouts)('bench engine, $name', ({ flags }) => {
  it('has figures for every batch, also where a rank has a part of it', async () => {
    const batches = [1, 6, 32]
    const given = { dtype: 'bfloat16', contextLength: 256, maxTotalTokens: 32 * 256, ...flags } as const
    const options = { promptTokens: 64, outputTokens: 32, seed: 1, batches }
    const io = captureIo()
    const report = await benchEngineCuda(io, flagsFor('models/demo', given), options)
    console.info(cudaBenchText(report))
    expect(report.decode.map(row => row.batch)).toEqual(batches)
    for (const { batch, traced, stepBytes } of report.decode) {
      const { rank, hostUs, gpuIdleShare, launches, kinds } = traced ?? expect.fail(`${batch} streams: nothing traced`)
      expect(rank).toBeLessThan(report.ranks)
      expect(hostUs).toBeGreaterThan(0)
      expect(gpuIdleShare).toBeGreaterThanOrEqual(0)
      expect(gpuIdleShare).toBeLessThan(1)
      // At least attention and its projections of each of the six layers.
      expect(launches).toBeGreaterThan(6 * 4)
      const attention = kinds.find(({ kind }) => kind === 'attention')
      expect(attention).toMatchObject({ calls: 6, us: expect.any(Number) })
      expect(kinds.map(({ kind }) => kind)).not.toContain('waiting')
      expect(stepBytes).toBeGreaterThan(0)
    }
  })
})
