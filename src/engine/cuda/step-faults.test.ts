// Which operation of a model's program is named for an index outside its table.
import { describe, expect, it } from 'vitest'
import { fixturePath, flagsFor, type GivenFlags, EXPERTS_ON_TWO as TWO } from '../../../test/engine/harness.js'
import { ReferencePacker } from '../../device/cpu/index.js'
import { planModel } from '../load-model.js'
import { checkStep, faultPlace } from './step-faults.js'

const programOf = (fixture: string, given: GivenFlags) =>
  planModel(flagsFor(fixturePath(fixture), given), {
    packer: new ReferencePacker(),
    memoryLimit: Number.POSITIVE_INFINITY,
    requireMemory: () => {},
    accelerator: { kind: 'cuda', memory: () => ({ free: 2 ** 36, total: 2 ** 36 }), fractionStatic: 0.85 },
  }).programs[0]![0]!.program

describe.each([
  ['qwen3_moe', {}, 'experts'],
  ['deepseek_v3', {}, 'experts'],
  ['qwen3_moe', TWO, 'dispatched_experts'],
] as const)('a bad index in %s, %j', (fixture, given, experts) => {
  const program = programOf(fixture, given)
  it.each([
    ['row', 'embed', -1],
    ['slot', 'store_kv', 0],
    ['position', 'rope', 0],
    ['page', 'attention', 0],
    ['expert', experts, fixture === 'deepseek_v3' ? 1 : 0],
  ] as const)('%s: the first %s, layer %d', (kind, operation, layer) => {
    const place = faultPlace(program, kind)!
    expect(program.operations[place.operation]!.kind).toBe(operation)
    expect(place.layer).toBe(layer)
    expect(program.operations.slice(0, place.operation).map(op => op.kind)).not.toContain(operation)
  })

  it('fails its step with all of that, and nothing else fails', () => {
    expect(() => checkStep(Int32Array.of(0, 77), 5, 1, [program, program])).not.toThrow()
    const { operation } = faultPlace(program, 'page')!
    const fields = { what: 'page', index: 77, step: 5, program: 1, operation, layer: 0 }
    expect(() => checkStep(Int32Array.of(4, 77), 5, 1, [program, program])).toThrow(
      expect.objectContaining({ code: 'SY_CUDA_BAD_INDEX', message: 'page 77 lies outside its table', fields }),
    )
  })

  it('is nowhere in a program that has no reader of it', () => {
    expect(faultPlace({ operations: [] }, 'page')).toBeNull()
  })
})
