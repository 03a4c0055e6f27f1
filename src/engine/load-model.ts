// From flags to a loaded model: config, tokenizer, device, programs, weights. Everything a user can get wrong is
// checked here, in the order of how cheap it is to check, before the first byte of weights is read.
import { basename, resolve } from 'node:path'
import type { ExpertBufferConfig } from '../comm/index.js'
import { checkPeerConfig } from '../comm/peer/index.js'
import { ConfigError } from '../config/config-errors.js'
import type { EngineFlags } from '../config/flags.js'
import type { MemoryLender } from '../device/memory.js'
import type { ActivationDtype } from '../device/ops.js'
import type { Placement } from '../eplb/index.js'
import { type GenerationDefaults, readModelSpec } from '../formats/hf/index.js'
import { loadDummyWeights, loadWeights, packedBytesOf } from '../formats/loader/index.js'
import type { ModelSpec } from '../formats/model-spec.js'
import { openCheckpoint } from '../formats/safetensors/index.js'
import { loadTokenizer, type Tokenizer } from '../formats/tokenizer/index.js'
import type { LoadedWeights } from '../formats/weight-spec.js'
import {
  buildDecoder,
  type ModelProgram,
  type ProgramLimits,
  type ProgramVariant,
  type RankLayout,
} from '../models/index.js'
import { checkSlots, dispatchNotes, expertBufferConfig } from '../moe/index.js'
import {
  buildTopology,
  type ModelFacts,
  type ResolvedParallel,
  resolveParallel,
  type Topology,
} from '../parallel/index.js'
import { hashWords } from '../scheduler/index.js'
import { type Drill, parseDrill } from './drill.js'
import { graphBatchesOf } from './graph-batches.js'
import type { NodeDevice, PlanningDevice } from './node-device.js'
import { memorySituation, mostArenaBytes } from './plan-memory.js'
import { refuseFakeRouting, refuseOnAccelerator } from './refuse.js'
import { resolvePlacement } from './resolve-placement.js'
import { programLimits, tokensOfStep } from './sizing.js'
import { variantsOf } from './variants.js'
import { uniteWeights, type WeightUnion } from './weight-union.js'

/** What the config and the flags decide, before any weight is read. Plain data. */
export interface ModelPlan {
  readonly directory: string
  readonly name: string
  readonly spec: ModelSpec
  readonly generation: GenerationDefaults
  /** Precision of the weights. */
  readonly dtype: 'f32' | 'bf16'
  /** Precision of activations and of the KV cache. */
  readonly activation: ActivationDtype
  readonly parallel: ResolvedParallel
  readonly topology: Topology
  /** null for models without routed experts. */
  readonly placement: Placement | null
  readonly limits: ProgramLimits
  /** The ways a step can run; every rank has one program for each, in this order. */
  readonly variants: readonly ProgramVariant[]
  /** By rank, then by variant. */
  readonly programs: readonly (readonly ModelProgram[])[]
  /** null without an all-to-all backend. */
  readonly expertBuffer: ExpertBufferConfig | null
  /** Places with memory of their own, each with the ranks that compute there and what they hold. */
  readonly weightPlaces: readonly WeightPlace[]
  /** Of all places. */
  readonly weightBytes: number
  /** Each rank has a stack of its own experts instead of the node's of all; its rows go there by dispatch, without padding. */
  readonly ownExperts: boolean
  /** Steps are formed before the last one's results are known. */
  readonly overlap: boolean
  /** Batch sizes that decode steps are captured for, ascending; none without graphs. */
  readonly graphBatches: readonly number[]
  /** Experts drawn evenly instead of routed (--ep-dispatch-algorithm fake). */
  readonly fakeRouting: boolean
  readonly options: PlanOptions
  /** What one rank is to do wrong, for drills. */
  readonly drill: Drill | null
  /** Hash of everything ranks must agree on. */
  readonly configHash: number
}

export interface WeightPlace {
  /** Ascending. */
  readonly ranks: readonly number[]
  /** Names in the order of `ranks`. */
  readonly weights: WeightUnion
  readonly weightBytes: number
}

export interface EngineHooks {
  /** `stage` in words ("packing weights"), done and total in bytes of the weights as they are kept. */
  onProgress?(progress: { stage: string; done: number; total: number }): void
  /** Something the user should know (no compiler: slow kernels). */
  onNotice?(text: string): void
  /** Events that each rank's trace can hold (80 bytes each); left out, nothing can be traced. */
  readonly traceRecords?: number
  /** For comparisons; not for users. */
  readonly plan?: PlanOptions
}

/** Choices that no flag makes. */
export interface PlanOptions {
  /** Boundaries between layers as separate operations: the reference of the fused ones. */
  readonly unfused?: boolean
  /** Steps formed ahead on a device that does not run ahead: what the CPU shows about it. */
  readonly overlap?: boolean
  /** Decode steps padded as for captured graphs, but launched kernel by kernel: the reference of the captured ones. */
  readonly uncaptured?: boolean
  /** Every rank with a stack of its own experts, as on GPUs, also where a node's one stack would do: what the CPU shows about it. */
  readonly ownExperts?: boolean
}

/** Reads the config and builds the programs. Used by the engine and by `explain`. */
export function planModel(flags: EngineFlags, device: PlanningDevice, options: PlanOptions = {}): ModelPlan {
  if (flags.modelPath === null) throw new ConfigError('SY_CONFIG_NO_MODEL', { example: 'switchyard serve models/demo' })
  const directory = resolve(flags.modelPath)
  const { spec, generation } = readModelSpec(directory, flags.jsonModelOverrideArgs ?? undefined)
  const dtype = flags.dtype === 'float32' || (flags.dtype === 'auto' && spec.dtype === 'float32') ? 'f32' : 'bf16'
  const facts = modelFacts(spec)
  const resolved = resolveParallel(flags, facts)
  const { accelerator } = device
  const activation = accelerator ? dtype : 'f32'
  if (accelerator) refuseOnAccelerator(accelerator.kind, flags, spec, resolved)
  const parallel = { ...resolved, notes: [...resolved.notes, ...dispatchNotes(flags, facts.experts > 0)] }
  if (facts.experts > 0) checkSlots(flags, { ...flags, attnTp: parallel.sizes.attnTp })
  const drill = parseDrill(flags.failureDrill, parallel.sizes.tp, accelerator?.kind ?? 'cpu')
  const topology = buildTopology(parallel.sizes)
  const placement = resolvePlacement(flags.initExpertLocation, spec, parallel.sizes, flags.epNumRedundantExperts)
  const gather = flags.dpGather === 'all_reduce' ? 'all_reduce' : 'all_gatherv'
  // Ranks with memory of their own hold their own experts only.
  const ownExperts = parallel.sizes.tp > 1 && (options.ownExperts ?? accelerator !== undefined)
  const variants = variantsOf(flags, parallel.sizes, placement !== null, ownExperts)
  const wiring = {
    spec,
    flags,
    topology,
    parallel,
    gather,
    placement,
    variants,
    options,
    activation,
    ownExperts,
  } as const
  const build = (limits: ProgramLimits) => buildPrograms(wiring, limits)

  // What weights and arenas take does not depend on context and KV cache; a first build with the smallest ones gives it.
  const tokens = tokensOfStep(flags)
  const cacheless = { tokens, sequences: flags.maxRunningRequests, contextLength: 1, pageSize: 1, kvSlots: 1 }
  const built = build(cacheless)
  const plans = built.map(p => p[0]!.weights)
  const weightPlaces = ranksByPlace(device, topology.sizes.tp).map((ranks): WeightPlace => {
    const weights = uniteWeights(ranks.map(rank => plans[rank]!))
    const weightBytes = weights.plan.weights.reduce((sum, w) => sum + packedBytesOf(w, dtype, device.packer), 0)
    return { ranks, weights, weightBytes }
  })
  const weightBytes = weightPlaces.reduce((sum, place) => sum + place.weightBytes, 0)
  const fullest = weightPlaces.reduce((a, b) => (b.weightBytes > a.weightBytes ? b : a))
  device.requireMemory(fullest.weightBytes, `the weights of ${basename(directory)}`)
  const expertBuffer = expertBufferOf(wiring, cacheless)
  if (expertBuffer && accelerator) checkPeerConfig(expertBuffer)
  const pools = Math.max(...weightPlaces.map(({ ranks }) => ranks.length))
  const arenaBytes = accelerator ? mostArenaBytes(built, weightPlaces, activation) : 0
  const memory = memorySituation(device, {
    weightBytes: fullest.weightBytes,
    pools,
    expertBuffer,
    arenaBytes,
    activation,
  })
  const limits = programLimits(flags, spec, topology.sizes, memory)
  // A replica is chosen by the tokens up to it: they must be known.
  const wanted = options.overlap ?? (accelerator !== undefined && !flags.disableOverlapSchedule)
  const overlap = wanted && (placement?.maxReplicas ?? 1) === 1
  const fakeRouting = flags.epDispatchAlgorithm === 'fake'
  // Ranks on GPUs route a row only where it lives.
  if (fakeRouting && topology.sizes.ep > 1 && !accelerator) refuseFakeRouting()
  const graphBatches = accelerator ? graphBatchesOf(flags) : []
  const agreed = JSON.stringify({
    spec,
    variants,
    expertBuffer,
    dtype,
    activation,
    overlap,
    graphBatches,
    fakeRouting,
    limits,
    gather: flags.dpGather,
    options,
    placement: placement?.physicalToLogical,
    sizes: topology.sizes,
    chunk: flags.chunkedPrefillSize,
  })
  return {
    directory,
    name: flags.servedModelName ?? basename(directory),
    spec,
    generation,
    dtype,
    activation,
    parallel,
    topology,
    placement,
    limits,
    variants,
    programs: build(limits),
    expertBuffer,
    weightPlaces,
    weightBytes,
    ownExperts,
    overlap,
    graphBatches,
    fakeRouting,
    options,
    drill,
    configHash: hashWords(Buffer.from(agreed)),
  }
}

/** Ranks that compute in the same memory. */
function ranksByPlace({ accelerator }: PlanningDevice, ranks: number): number[][] {
  const places = new Map<number, number[]>()
  for (let rank = 0; rank < ranks; rank++) {
    const gpu = accelerator?.gpuOfRank?.(rank) ?? 0
    places.set(gpu, [...(places.get(gpu) ?? []), rank])
  }
  return [...places.values()]
}

/** What parallel sizes must fit. */
function modelFacts(spec: ModelSpec): ModelFacts {
  const { attention } = spec.layers[0]!
  const moe = spec.layers.find(l => l.ffn.kind === 'moe')?.ffn
  const experts = moe?.kind === 'moe' ? moe.router.experts : 0
  const dense = spec.layers.find(l => l.ffn.kind === 'dense')?.ffn
  return {
    heads: attention.heads,
    kvHeads: attention.kind === 'gqa' ? attention.kvHeads : 1,
    latentCache: attention.kind === 'mla',
    experts,
    moeIntermediate: moe?.kind === 'moe' ? moe.intermediate : 0,
    denseIntermediate: dense?.kind === 'dense' ? dense.intermediate : null,
    sharedIntermediate: moe?.kind === 'moe' ? (moe.shared?.intermediate ?? null) : null,
    vocab: spec.vocabSize,
    fp8BlockRows: spec.fp8Block?.[0] ?? null,
  }
}

/** What all ranks' programs are built from. */
interface Wiring {
  readonly spec: ModelSpec
  readonly flags: EngineFlags
  readonly topology: Topology
  readonly parallel: ResolvedParallel
  readonly gather: RankLayout['sumLenGather']
  readonly placement: Placement | null
  readonly variants: readonly ProgramVariant[]
  readonly options: PlanOptions
  readonly activation: ActivationDtype
  /** Ranks hold the weights of their own experts only, instead of one stack for the node. */
  readonly ownExperts: boolean
}

function buildPrograms(wiring: Wiring, limits: ProgramLimits): ModelProgram[][] {
  const { spec, topology, parallel, gather, placement, variants, options } = wiring
  const buffer = expertBufferOf(wiring, limits)
  const { denseLocal, dpLmHead } = parallel
  return topology.ranks.map(rank =>
    variants.map(variant => {
      const layout: RankLayout = {
        ...variant,
        ...options,
        sizes: topology.sizes,
        rank,
        sumLenGather: gather,
        denseLocal,
        dpLmHead,
        physicalExperts: placement?.physical ?? 0,
        replicated: (placement?.maxReplicas ?? 1) > 1,
        maxReceived: buffer ? receivedRows(buffer, variant.dispatch) : 0,
        ownExperts: wiring.ownExperts && placement ? expertsOf(placement, rank.ep) : null,
      }
      return buildDecoder(spec, layout, limits)
    }),
  )
}

/** Logical experts of an expert-parallel rank's slots, by layer. */
function expertsOf({ cluster, physical, physicalToLogical }: Placement, ep: number): (layer: number) => number[] {
  const first = cluster.slotsPerGpu.slice(0, ep).reduce((a, b) => a + b, 0)
  const slots = cluster.slotsPerGpu[ep]!
  return layer => Array.from({ length: slots }, (_, slot) => physicalToLogical[layer * physical + first + slot]!)
}

/** Rows one rank sees at most in a dispatch. */
function receivedRows(config: ExpertBufferConfig, dispatch: ProgramVariant['dispatch']): number {
  const members = config.expertsOfMember.length
  if (dispatch === 'normal') return members * config.normal!.maxTokens
  return dispatch === 'low_latency' ? members * config.lowLatency!.slots : 0
}

function expertBufferOf(
  { spec, flags, topology, placement, activation, ownExperts }: Wiring,
  limits: ProgramLimits,
): ExpertBufferConfig | null {
  const moe = spec.layers.find(l => l.ffn.kind === 'moe')?.ffn
  if (flags.moeA2aBackend === 'none' || placement === null || moe?.kind !== 'moe') return null
  return expertBufferConfig(flags, {
    // Rows travel as they are computed.
    ...(ownExperts ? { wire: activation, results: 2 as const } : {}),
    hidden: spec.hiddenSize,
    topK: moe.router.topK,
    expertsOfRank: placement.cluster.slotsPerGpu,
    nodeOfRank: placement.cluster.nodeOfGpu,
    maxTokens: Math.ceil(limits.tokens / topology.sizes.attnTp),
  })
}

/** Packs the weights of one place into memory lent there. */
export async function loadWeightsOf(
  plan: ModelPlan,
  weights: WeightUnion,
  flags: EngineFlags,
  device: NodeDevice,
  lender: MemoryLender,
  onProgress: (done: number, total: number) => void,
): Promise<LoadedWeights> {
  const common = { plan: weights.plan, dtype: plan.dtype, packer: device.packer, lender, onProgress }
  if (flags.loadFormat === 'dummy') return loadDummyWeights({ ...common, seed: flags.randomSeed ?? 0 })
  const checkpoint = openCheckpoint(plan.directory, { mapRange: device.mapFileRange })
  const otherPlans = plan.weightPlaces.map(place => place.weights.plan).filter(other => other !== weights.plan)
  return loadWeights({ ...common, checkpoint, fp8Block: plan.spec.fp8Block, otherPlans })
}

export const openTokenizer = (plan: ModelPlan): Tokenizer | null => loadTokenizer(plan.directory)
