// From flags to a loaded model: config, tokenizer, device, programs, weights. Everything a user can get wrong is
// checked here, in the order of how cheap it is to check, before the first byte of weights is read.
import { freemem } from 'node:os'
import { basename, resolve } from 'node:path'
import { ConfigError } from '../config/config-errors.js'
import type { EngineFlags } from '../config/flags.js'
import { type CpuDevice, createCpuDevice } from '../device/cpu/index.js'
import type { MemoryLender } from '../device/memory.js'
import { type GenerationDefaults, readModelSpec } from '../formats/hf/index.js'
import { loadDummyWeights, loadWeights } from '../formats/loader/index.js'
import type { ModelSpec } from '../formats/model-spec.js'
import { openCheckpoint } from '../formats/safetensors/index.js'
import { loadTokenizer, type Tokenizer } from '../formats/tokenizer/index.js'
import type { LoadedWeights } from '../formats/weight-spec.js'
import { buildDecoder, type ModelProgram, type ProgramLimits } from '../models/index.js'
import { buildTopology, SINGLE_RANK, type Topology } from '../parallel/index.js'
import { hashWords } from '../scheduler/index.js'
import { machineMemory, programLimits } from './sizing.js'

/** What the config and the flags decide, before any weight is read. Pure data apart from the tokenizer. */
export interface ModelPlan {
  readonly directory: string
  readonly name: string
  readonly spec: ModelSpec
  readonly generation: GenerationDefaults
  readonly dtype: 'f32' | 'bf16'
  readonly topology: Topology
  readonly limits: ProgramLimits
  /** One program a rank. */
  readonly programs: readonly ModelProgram[]
  readonly weightBytes: number
  /** Hash of everything ranks must agree on. */
  readonly configHash: number
}

export interface EngineHooks {
  /** `stage` in words ("packing weights"), done and total in bytes. */
  onProgress?(progress: { stage: string; done: number; total: number }): void
  /** Something the user should know (no compiler: slow kernels). */
  onNotice?(text: string): void
}

/** Reads the config and builds the programs. Used by the engine and by `explain`. */
export function planModel(flags: EngineFlags, device: Pick<CpuDevice, 'packer'>): ModelPlan {
  if (flags.modelPath === null) throw new ConfigError('SY_CONFIG_NO_MODEL', { example: 'switchyard serve models/demo' })
  const directory = resolve(flags.modelPath)
  const { spec, generation } = readModelSpec(directory, flags.jsonModelOverrideArgs ?? undefined)
  const dtype = flags.dtype === 'float32' || (flags.dtype === 'auto' && spec.dtype === 'float32') ? 'f32' : 'bf16'
  const topology = buildTopology(SINGLE_RANK)
  const memory = { free: availableMemory(), total: machineMemory(), weights: 0 }
  // The weights' size does not depend on the limits; a first build with the smallest ones gives it.
  const smallest = { tokens: 1, sequences: 1, contextLength: 1, pageSize: 1, kvSlots: 1 }
  const weightBytes = bytesOfWeights(buildDecoder(spec, topology.sizes, topology.ranks[0]!, smallest), dtype, device)
  const left = { ...memory, free: memory.free - weightBytes, weights: weightBytes }
  const limits = programLimits(flags, spec, left)
  const programs = topology.ranks.map(rank => buildDecoder(spec, topology.sizes, rank, limits))
  const agreed = JSON.stringify({ spec, dtype, limits, sizes: topology.sizes, chunk: flags.chunkedPrefillSize })
  return {
    directory,
    name: flags.servedModelName ?? basename(directory),
    spec,
    generation,
    dtype,
    topology,
    limits,
    programs,
    weightBytes,
    configHash: hashWords(Buffer.from(agreed)),
  }
}

function bytesOfWeights(program: ModelProgram, dtype: 'f32' | 'bf16', { packer }: Pick<CpuDevice, 'packer'>): number {
  return program.weights.weights.reduce((sum, w) => {
    if (w.form === 'vector') return sum + w.length * 4
    return sum + w.pieces.length * packer.packedBytes(w.precision === 'f32' ? 'f32' : dtype, w.n, w.k)
  }, 0)
}

/** Memory this process can still take: the machine's, or its container's. */
function availableMemory(): number {
  const limit = process.constrainedMemory?.() ?? 0
  const free = freemem()
  return limit > 0 && limit < 2 ** 50 ? Math.min(free, Math.max(0, limit - process.memoryUsage.rss())) : free
}

/** Packs the weights of all ranks into lent memory, once. */
export async function loadModelWeights(
  plan: ModelPlan,
  flags: EngineFlags,
  device: CpuDevice,
  lender: MemoryLender,
  hooks: EngineHooks,
): Promise<LoadedWeights> {
  const weightPlan = plan.programs[0]!.weights
  const onProgress = (done: number, total: number) => hooks.onProgress?.({ stage: 'packing weights', done, total })
  if (flags.loadFormat === 'dummy') {
    const seed = flags.randomSeed ?? 0
    return loadDummyWeights({ plan: weightPlan, dtype: plan.dtype, packer: device.packer, lender, seed, onProgress })
  }
  const checkpoint = openCheckpoint(plan.directory, { mapRange: device.mapRange })
  const { dtype, spec } = plan
  return loadWeights({
    checkpoint,
    plan: weightPlan,
    dtype,
    packer: device.packer,
    lender,
    fp8Block: spec.fp8Block,
    onProgress,
  })
}

export const openDevice = (flags: EngineFlags): CpuDevice => createCpuDevice({ kernels: flags.kernels })

export const openTokenizer = (plan: ModelPlan): Tokenizer | null => loadTokenizer(plan.directory)
