// Which drills are refused, because nothing would go wrong; where they strike among operations that are bound in groups; and once only.
import { describe, expect, it } from 'vitest'
import { ConfigError } from '../config/config-errors.js'
import type { BoundOperation } from '../program/index.js'
import { DrillMaster, parseDrill } from './drill.js'

describe('drills', () => {
  it.each([
    ['bad_page', 1, 'cpu', 'bad_page with --device cpu'],
    ['bad_address', 2, 'cpu', 'bad_address with --device cpu'],
    ['spin', 1, 'cpu', 'spin with --device cpu'],
    ['wrong_rows', 2, 'cuda', 'wrong_rows with --device cuda'],
    ['wrong_rows', 1, 'cpu', 'wrong_rows with one rank'],
    ['wrong_plan', 1, 'cuda', 'wrong_plan with one rank'],
    ['wrong_flag', 1, 'cpu', 'wrong_flag with one rank'],
  ] as const)('%s of %d rank(s) on %s is refused by name', (kind, ranks, device, text) => {
    const refused = () => parseDrill({ kind, step: 3 }, ranks, device)
    expect(refused).toThrow(ConfigError)
    expect(refused).toThrow(text)
  })

  it.each([
    ['throw', 1, 'cuda', 0],
    ['hang', 1, 'cuda', 0],
    ['wrong_plan', 2, 'cuda', 1],
    ['wrong_rows', 2, 'cpu', 1],
    // Kernels run in steps only.
    ['bad_page', 1, 'cuda', 1],
    ['spin', 2, 'cuda', 1],
  ] as const)('%s of %d rank(s) on %s may strike from step %d', (kind, ranks, device, step) => {
    expect(parseDrill({ kind, step: 0 }, ranks, device)).toEqual({ kind, rank: 0, step, operation: 0 })
  })
})

describe('a drill among operations that are bound in groups', () => {
  const ran: string[] = []
  const operations = [0, 1, 4, 7].map(
    (index): BoundOperation => ({
      ...{ kind: 'linear', rows: 'tokens', layer: 0, index, how: 'kernel' },
      kernel: () => ran.push(`${index}`),
    }),
  )
  const run = (drill: DrillMaster, bound: readonly BoundOperation[], step: number): string[] => {
    ran.length = 0
    drill.beginStep(step)
    for (const op of bound) if (op.how === 'kernel') op.kernel(1)
    return [...ran]
  }

  it.each([
    [0, 0],
    [2, 4],
    [4, 4],
    [5, 7],
    [99, 7],
  ])('before operation %d strikes before %d, once, from its step on', (operation, at) => {
    const drill = new DrillMaster({ rank: 1, kind: 'bad_address', step: 3, operation }, 1)
    const bound = drill.rig(operations, () => ran.push('strike'))
    expect(run(drill, bound, 2)).toEqual(['0', '1', '4', '7'])
    expect(drill.strikesNow).toBe(false)
    drill.beginStep(3)
    expect(drill.strikesNow).toBe(true)
    const expected = ['0', '1', '4', '7'].flatMap(index => (index === `${at}` ? ['strike', index] : [index]))
    expect(run(drill, bound, 3)).toEqual(expected)
    expect(drill.strikesNow).toBe(false)
    expect(run(drill, bound, 4)).toEqual(['0', '1', '4', '7'])
  })

  it('of the page table strikes no operation, and once', () => {
    const drill = new DrillMaster({ rank: 0, kind: 'bad_page', step: 3, operation: 0 }, 0)
    expect(drill.rig(operations)).toBe(operations)
    drill.beginStep(2)
    expect(drill.takeBadPage()).toBe(false)
    drill.beginStep(4)
    expect([drill.strikesNow, drill.takeBadPage(), drill.takeBadPage()]).toEqual([false, true, false])
  })

  it('leaves the other ranks alone', () => {
    const drill = new DrillMaster({ rank: 0, kind: 'throw', step: 1, operation: 0 }, 1)
    drill.beginStep(5)
    expect([drill.rig(operations) === operations, drill.strikesNow, drill.gpuStrike]).toEqual([true, false, null])
  })
})
