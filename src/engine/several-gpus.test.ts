// Two ranks on GPUs as a plan: what their programs still exchange, which weights each of them holds, and how memory is counted.
import { describe, expect, it } from 'vitest'
import { fixturePath, flagsFor, type GivenFlags, EXPERTS_ON_TWO as TWO } from '../../test/engine/harness.js'
import { layOutRegion } from '../comm/peer/index.js'
import { ReferencePacker } from '../device/cpu/index.js'
import { elementBytes } from '../device/ops.js'
import { planArena } from '../program/index.js'
import { type ModelPlan, planModel } from './load-model.js'
import type { PlanningDevice } from './node-device.js'
import { kvBytesPerToken } from './sizing.js'

const MIB = 2 ** 20

/** @param gpuOfRank numbers of GPUs */
const gpus = (gpuOfRank: readonly number[], free: number): PlanningDevice => ({
  packer: new ReferencePacker(),
  memoryLimit: Number.POSITIVE_INFINITY,
  requireMemory: () => {},
  accelerator: {
    kind: 'cuda',
    memory: () => ({ free, total: free }),
    fractionStatic: 0.85,
    gpuOfRank: rank => gpuOfRank[rank]!,
  },
})
const plan = (fixture: string, gpuOfRank: readonly number[], given: GivenFlags = {}, free = 1024 * MIB): ModelPlan =>
  planModel(flagsFor(fixturePath(fixture), { ...TWO, ...given }), gpus(gpuOfRank, free))

const EXCHANGE = ['dispatch_send', 'dispatch_receive', 'dispatched_experts', 'combine_send', 'combine_receive']
const NEEDS_OTHERS = ['all_gather', 'all_reduce', 'reduce_scatter', 'reduce_norm', 'gather_columns']
const ON_THE_HOST = ['place_rows', 'cut_rows', 'clear_padding', 'square_sum', 'rms_scale']

describe.each(['qwen3_moe', 'deepseek_v3', 'qwen2_moe', 'olmoe', 'mixtral'])('%s on two GPUs', fixture => {
  it('nothing but dispatch and combine crosses ranks, and no operation needs the host', () => {
    const { programs, variants } = plan(fixture, [0, 1])
    expect(variants).toEqual([
      { padding: 'SUM_LEN', dispatch: 'normal' },
      { padding: 'SUM_LEN', dispatch: 'low_latency' },
    ])
    for (const { program } of programs.flat()) {
      const kinds = new Set<string>(program.operations.map(op => op.kind))
      for (const kind of [...NEEDS_OTHERS, ...ON_THE_HOST]) expect(kinds).not.toContain(kind)
      for (const kind of EXCHANGE) expect(kinds).toContain(kind)
      expect(program.buffers.filter(b => b.kind === 'exchange')).toEqual([])
      // Ids are integers and weights f32, whatever the width of activations.
      for (const op of program.operations) {
        if (op.kind !== 'dispatch_send') continue
        const dtypeOf = (buffer: string) => program.buffers.find(b => b.name === buffer)!.dtype
        const { x, ids, weights } = op.args
        expect([x, ids, weights].map(ref => dtypeOf(ref.buffer))).toEqual(['act', 'i32', 'f32'])
      }
    }
  })

  it('every expert is held once, in the order of slots; all else by both', () => {
    const { weightPlaces, spec, placement } = plan(fixture, [0, 1])
    expect(weightPlaces.map(p => p.ranks)).toEqual([[0], [1]])
    const stacks = weightPlaces.map(({ weights }) =>
      weights.plan.weights.flatMap(w => (w.form === 'matrix' && /\.moe\.(gate_up|down)$/.test(w.name) ? [w] : [])),
    )
    const [first, second] = stacks as [(typeof stacks)[0], (typeof stacks)[0]]
    expect(first.map(w => w.name)).toEqual(second.map(w => w.name))
    const [slots] = placement!.cluster.slotsPerGpu
    first.forEach((stack, i) => {
      expect(stack.pieces).toHaveLength(slots!)
      const whole = [...stack.pieces, ...second[i]!.pieces].map(pieces => JSON.stringify(pieces))
      expect(new Set(whole).size).toBe(placement!.logical)
    })
    const rest = weightPlaces.map(({ weights }) =>
      weights.plan.weights.filter(w => !/\.moe\.(gate_up|down)$/.test(w.name)).map(w => JSON.stringify(w)),
    )
    expect(rest[0]).toEqual(rest[1])
    expect(spec.layers.length).toBeGreaterThan(0)
  })

  it('ranks that share a GPU share what both hold', () => {
    const apart = plan(fixture, [0, 1])
    const shared = plan(fixture, [0, 0])
    expect(shared.weightPlaces.map(p => p.ranks)).toEqual([[0, 1]])
    expect(shared.weightBytes).toBeLessThan(apart.weightBytes)
  })
})

it('a GPU of its own has room for twice the cache that a shared one has', () => {
  const given: GivenFlags = { maxTotalTokens: null, maxRunningRequests: 1000, contextLength: 256 }
  const slots = (gpuOfRank: readonly number[]) => plan('qwen3_moe', gpuOfRank, given, 60 * MIB).limits.kvSlots
  expect(slots([0, 0])).toBeGreaterThan(1000)
  expect(slots([0, 1]) / slots([0, 0])).toBeGreaterThan(1.9)
})

it('rows travel as they are computed', () => {
  expect(plan('qwen3_moe', [0, 1]).expertBuffer).toMatchObject({
    results: 2,
    normal: { dispatchWire: 'f32', combineWire: 'f32', transit: 'direct' },
  })
  expect(plan('qwen3_moe', [0, 1], { dtype: 'bfloat16' }).expertBuffer).toMatchObject({
    normal: { dispatchWire: 'bf16', combineWire: 'bf16' },
    lowLatency: { dispatchWire: 'bf16', combineWire: 'bf16', reduce: 'sender' },
  })
})

it('experts may be drawn instead of chosen: a row is routed where it lives, and nowhere else', () => {
  expect(plan('qwen3_moe', [0, 1], { epDispatchAlgorithm: 'fake' }).fakeRouting).toBe(true)
})

describe('memory that arenas take of a GPU', () => {
  const arenas = ({ programs, activation }: ModelPlan, ranks: readonly number[]): number =>
    ranks.reduce((sum, r) => sum + Math.max(...programs[r]!.map(p => planArena(p.program, activation).bytes)), 0)
  const bytesOfKv = ({ limits, spec, activation }: ModelPlan, pools: number): number =>
    pools * limits.kvSlots * kvBytesPerToken(spec, 1, elementBytes(activation))
  const taken = ({ weightPlaces, expertBuffer }: ModelPlan, pools: number): number =>
    weightPlaces[0]!.weightBytes + pools * layOutRegion(expertBuffer!).bytes
  // More requests than memory has caches for, or it would not decide.
  const many: GivenFlags = { maxRunningRequests: 256, chunkedPrefillSize: 2048, pageSize: 16, maxTotalTokens: null }

  it.each([
    ['a GPU each', [0, 1], 1],
    ['one GPU for both', [0, 0], 2],
  ] as const)('is left to them, %s', (_, gpuOfRank, pools) => {
    const ranks = pools === 2 ? [0, 1] : [0]
    const known = plan('qwen3_moe', gpuOfRank, many)
    const fixed = taken(known, pools) + arenas(known, ranks)
    // The share for weights and caches would leave arenas less than they need.
    const free = fixed + 4 * MIB
    const tight = plan('qwen3_moe', gpuOfRank, { ...many, memFractionStatic: 1 }, free)
    expect(arenas(tight, ranks)).toBe(arenas(known, ranks))
    expect(bytesOfKv(tight, pools)).toBeLessThanOrEqual(4 * MIB)
    expect(bytesOfKv(tight, pools)).toBeGreaterThan(3.5 * MIB)
    // What the share leaves over is enough for them: then it decides alone.
    const share = (taken(known, pools) + 4 * MIB) / (4 * fixed)
    const roomy = plan('qwen3_moe', gpuOfRank, { ...many, memFractionStatic: share }, 4 * fixed)
    expect(bytesOfKv(roomy, pools)).toBeLessThanOrEqual(4 * MIB)
    expect(bytesOfKv(roomy, pools)).toBeGreaterThan(3.5 * MIB)
  })

  it('is named when nothing is left for a cache, also of a size that was asked for', () => {
    const known = plan('qwen3_moe', [0, 1], many)
    const free = taken(known, 1) + arenas(known, [0])
    for (const given of [{ memFractionStatic: 1 }, { maxTotalTokens: 64 }])
      expect(() => plan('qwen3_moe', [0, 1], { ...many, ...given }, free)).toThrow(
        expect.objectContaining({ remedy: expect.stringContaining('--chunked-prefill-size') }),
      )
  })
})
