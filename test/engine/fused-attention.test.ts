// Fused operations of the attention layer: which ones are found in the programs of every architecture, and that a fused program
// computes what the separate operations do, bit for bit, when the fused kernel is made of those operations.
import { describe, expect, it } from 'vitest'
import { createCpuDevice } from '../../src/device/cpu/index.js'
import type { DeviceOps } from '../../src/device/device-ops.js'
import { f32View, HostMemoryLender, i32View, type MemorySpan } from '../../src/device/memory.js'
import type { Kernel, Operand, PackedMatrix, ParameterVector } from '../../src/device/ops.js'
import { fillRopeTable } from '../../src/engine/rope-table.js'
import { readModelSpec } from '../../src/formats/hf/index.js'
import { buildDecoder } from '../../src/models/index.js'
import { buildTopology, SINGLE_RANK } from '../../src/parallel/index.js'
import { fuseOperations } from '../../src/program/fuse.js'
import { bindCudaProgram, bufferBytes, type Program } from '../../src/program/index.js'
import { CounterRandom, STREAM } from '../../src/runtime/random.js'
import { FIXTURES } from '../checkpoints.js'

const limits = { tokens: 6, sequences: 2, contextLength: 32, pageSize: 4, kvSlots: 32 }

function decoderOf(fixture: string) {
  const { spec } = readModelSpec(`${FIXTURES}/${fixture}`)
  const moe = spec.layers.find(l => l.ffn.kind === 'moe')?.ffn
  return buildDecoder(
    spec,
    {
      sizes: SINGLE_RANK,
      rank: buildTopology(SINGLE_RANK).ranks[0]!,
      padding: 'SUM_LEN',
      dispatch: 'none',
      sumLenGather: 'all_gatherv',
      denseLocal: false,
      dpLmHead: false,
      physicalExperts: moe?.kind === 'moe' ? moe.router.experts : 0,
      replicated: false,
      maxReceived: 0,
      ownExperts: null,
    },
    limits,
  )
}

/** Norms with it, or not; a clamp or a norm over the row comes before. */
const found: Record<string, string> = {
  qwen3_moe: 'qk_norm_rope_store with norms',
  glm4_moe: 'qk_norm_rope_store with norms',
  mixtral: 'qk_norm_rope_store',
  qwen2_moe: 'qk_norm_rope_store',
  olmoe: 'qk_norm_rope_store',
  gpt_oss: 'qk_norm_rope_store',
  deepseek_v2: 'latent_norm_rope_store',
  deepseek_v3: 'latent_norm_rope_store',
  deepseek_v3_yarn_noqlora: 'latent_norm_rope_store',
}

describe.each(Object.entries(found))('%s', (fixture, kind) => {
  it(`has one ${kind} in every layer, and every operation once`, () => {
    const { operations } = decoderOf(fixture).program
    const groups = fuseOperations(operations)
    const fused = groups.filter(g => g.fusion !== null)
    const layers = new Set(operations.map(op => op.layer))
    layers.delete(-1)
    expect(fused.map(g => operations[g.first]!.layer)).toEqual([...layers])
    for (const { fusion } of fused) {
      const norms = fusion!.kind === 'qk_norm_rope_store' && fusion!.norms !== null ? ' with norms' : ''
      expect(fusion!.kind + norms).toBe(kind)
    }
    expect(groups.flatMap(g => Array.from({ length: g.count }, (_, i) => g.first + i))).toEqual([...operations.keys()])
  })

  it('gives the same bits fused and separate', () => {
    const model = decoderOf(fixture)
    const [fused, separate] = [run(model, true), run(model, false)]
    expect(fused.operations).toBeLessThan(separate.operations)
    expect(fused.logits.some(v => v !== 0)).toBe(true)
    expect(fused.logits).toEqual(separate.logits)
  })
})

/** Runs a decoder with made-up weights on a prompt of four tokens and one of two. */
function run({ program, weights }: ReturnType<typeof decoderOf>, fused: boolean) {
  const { ops, packer } = createCpuDevice({ kernels: 'reference' })
  const lender = new HostMemoryLender()
  const random = new CounterRandom(3, STREAM.benchmark)
  const numbers = (count: number) => Float32Array.from({ length: count }, () => random.unit() - 0.5)
  const matrices: Record<string, PackedMatrix> = {}
  const vectors: Record<string, ParameterVector> = {}
  for (const w of weights.weights) {
    if (w.form === 'vector') {
      const span = lender.lend(w.length * 4, w.name)
      f32View(span).set(numbers(w.length))
      vectors[w.name] = { length: w.length, span }
      continue
    }
    const { n, k } = w
    const strideBytes = packer.packedBytes('f32', n, k)
    const count = w.pieces.length
    const m: PackedMatrix = { kind: 'f32', n, k, count, strideBytes, span: lender.lend(strideBytes * count, w.name) }
    for (let i = 0; i < count; i++)
      packer.packMatrix(m, i, 0, n, {
        dtype: 'F32',
        bytes: new Uint8Array(numbers(n * k).buffer),
        offset: 0,
        strideN: k,
        strideK: 1,
      })
    matrices[w.name] = m
  }
  const buffers = Object.fromEntries(program.buffers.map(b => [b.name, lender.lend(bufferBytes(program, b), b.name)]))
  const ropeTables = Object.fromEntries(
    program.ropeTables.map(t => {
      const span = lender.lend(t.positions * t.width * 4, t.name)
      fillRopeTable(t, f32View(span))
      return [t.name, span]
    }),
  )
  const bound = bindCudaProgram({
    ops: composed(ops),
    fused,
    program,
    weights: { matrices, vectors, spans: [], bytes: 0 },
    buffers,
    ropeTables,
    idTables: { spans: {}, columns: {} },
    groups: {} as never,
    dispatchers: {},
  })
  writeInputs(buffers, program)
  for (const op of bound) {
    if (op.how !== 'kernel') throw new Error(op.kind)
    op.kernel(op.rows === 'logitRows' ? 2 : 6)
  }
  const vocab = program.buffers.find(b => b.name === 'logits')!.columns
  return { operations: bound.length, logits: f32View(buffers['logits']!).slice(0, 2 * vocab) }
}

function writeInputs(buffers: Readonly<Record<string, MemorySpan>>, program: Program): void {
  const columns = program.buffers.find(b => b.name === 'page_table')!.columns
  const put = (name: string, values: readonly number[]) => i32View(buffers[name]!).set(values)
  put('ids', [3, 1, 4, 1, 5, 2])
  put('positions', [0, 1, 2, 3, 0, 1])
  put('row_sequence', [0, 0, 0, 0, 1, 1])
  put('slots', [8, 9, 10, 11, 4, 5])
  put('logit_index', [3, 5])
  i32View(buffers['page_table']!)[0] = 2
  i32View(buffers['page_table']!)[columns] = 1
}

/** Fused operations by the operations they stand for. */
function composed(ops: ReturnType<typeof createCpuDevice>['ops']): DeviceOps {
  const shifted = (x: Operand, columns: number): Operand => ({ ...x, offset: x.offset + columns })
  const inTurn =
    (...kernels: readonly Kernel[]): Kernel =>
    rows => {
      for (const kernel of kernels) kernel(rows)
    }
  const refuse = () => {
    throw new Error('not in these programs')
  }
  return {
    ...ops,
    mapIds: refuse,
    chooseReplicas: refuse,
    clamp: ({ x, width, limit }) => {
      const view = f32View(x.span)
      return rows => {
        for (let r = 0; r < rows; r++)
          for (let c = 0; c < width; c++) {
            const i = x.offset + r * x.stride + c
            view[i] = Math.min(Math.max(view[i]!, -limit), limit)
          }
      }
    },
    qkNormRopeStore({ x, kv, slots, positions, heads, kvHeads, headWidth, norms, rope }) {
      const k = shifted(x, heads * headWidth)
      const spin = (part: Operand, count: number) =>
        ops.rope({
          ...rope,
          out: part,
          outHeadStride: headWidth,
          x: part,
          xHeadStride: headWidth,
          heads: count,
          positions,
        })
      const norm = (part: Operand, groups: number, weight: ParameterVector) =>
        ops.rmsNorm({ out: part, x: part, weight, width: headWidth, groups, eps: norms!.eps })
      return inTurn(
        ...(norms ? [norm(x, heads, norms.q), norm(k, kvHeads, norms.k)] : []),
        ...[spin(x, heads), spin(k, kvHeads), ops.storeKv({ kv, x: k, slots, width: 2 * kvHeads * headWidth })],
      )
    },
    latentNormRopeStore({ x, kv, slots, positions, latent, norm, rope }) {
      const key = shifted(x, latent)
      return inTurn(
        ops.rmsNorm({ out: x, x, weight: norm.weight, width: latent, groups: 1, eps: norm.eps }),
        ops.rope({ ...rope, out: key, outHeadStride: 0, x: key, xHeadStride: 0, heads: 1, positions }),
        ops.storeKv({ kv, x, slots, width: latent + rope.width }),
      )
    },
  }
}
