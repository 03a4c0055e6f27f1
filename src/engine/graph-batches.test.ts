// Which decode batches graphs are captured for, and which graph runs a batch.
import { describe, expect, it } from 'vitest'
import { engineFlags } from '../config/flags.js'
import { graphBatchesOf, graphBatchFor } from './graph-batches.js'

const batches = (given: Parameters<typeof engineFlags>[0]) => graphBatchesOf(engineFlags(given))

describe('batch sizes of graphs', () => {
  it('are 1, 2, 4 and multiples of 8 up to what may run at once', () => {
    expect(batches({ maxRunningRequests: 20 })).toEqual([1, 2, 4, 8, 16, 20])
    expect(batches({ maxRunningRequests: 1 })).toEqual([1])
    expect(batches({ maxRunningRequests: 3 })).toEqual([1, 2, 3])
    expect(batches({ maxRunningRequests: 1000 }).at(-1)).toBe(256)
    expect(batches({ maxRunningRequests: 1000, cudaGraphMaxBs: 300 }).at(-1)).toBe(300)
  })

  it('are those asked for, as far as they can run', () => {
    expect(batches({ maxRunningRequests: 64, cudaGraphBs: '32,4,4,128' })).toEqual([4, 32])
    expect(batches({ disableCudaGraph: true, cudaGraphBs: '4' })).toEqual([])
  })

  it('take the smallest that holds the rows', () => {
    expect([1, 2, 3, 9, 16, 17].map(rows => graphBatchFor(rows, [1, 2, 4, 16]))).toEqual([1, 2, 4, 16, 16, null])
    expect(graphBatchFor(0, [1, 2])).toBeNull()
    expect(graphBatchFor(1, [])).toBeNull()
  })
})
