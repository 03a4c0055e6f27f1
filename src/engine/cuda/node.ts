// A GPU as the device of a node: packs weights into its memory, lends that memory, and tells ranks where to find it.
import { FAULT_RECORD_BYTES } from '../../comm/peer/index.js'
import { createCpuDevice } from '../../device/cpu/index.js'
import type { CudaContext } from '../../device/cuda/context.js'
import { createCudaDevice } from '../../device/cuda/device.js'
import { exitProcess } from '../../device/cuda/exit.js'
import { HostRegistry, PinnedLender } from '../../device/cuda/host-memory.js'
import type { CudaMemoryLender } from '../../device/cuda/types.js'
import { hostBuffer, type MemoryLender, type MemorySpan } from '../../device/memory.js'
import type { Program } from '../../program/index.js'
import { EngineError } from '../errors.js'
import type { CudaRankDevice } from '../launch.js'
import type { NodeDevice, PlacedRank, PlannedSteps, RankLenders } from '../node-device.js'
import { showBytes } from '../sizing.js'
import { lendDeviceInputs, lendStepSlot } from './staging.js'

/** As SGLang: the rest is for activations, captured graphs and the libraries' own. */
const FRACTION_STATIC = 0.85

/** A step is formed while the one before runs. */
const STEPS_ON_THEIR_WAY = 2

/**
 * @param ordinals the GPU of each rank; ranks may share one
 * @throws CudaError SY_CUDA_UNAVAILABLE, SY_CUDA_NO_DEVICE, SY_CUDA_OLD_DEVICE; EngineError SY_ENGINE_GPU_TOO_OLD, SY_ENGINE_NO_PEER_ACCESS
 */
export function openCudaNode(ordinals: readonly number[]): NodeDevice {
  const gpus = new Map<number, Gpu>()
  try {
    for (const ordinal of ordinals) if (!gpus.has(ordinal)) gpus.set(ordinal, openGpu(ordinal))
    if (ordinals.length > 1) for (const { context } of gpus.values()) requirePeerKernels(context)
    connect([...gpus.values()].map(gpu => gpu.context))
  } catch (error) {
    for (const gpu of gpus.values()) gpu.node.close()
    throw error
  }
  const first = gpus.get(ordinals[0]!)!
  if (ordinals.length === 1) return first.node
  const all = [...gpus.values()].map(gpu => gpu.node)
  return {
    ...first.node,
    name: ordinals.map(ordinal => gpus.get(ordinal)!.node.name).join(', '),
    accelerator: {
      ...first.node.accelerator!,
      // What fits the fullest GPU fits all.
      memory: () => all.map(node => node.accelerator!.memory()).reduce((a, b) => (b.free < a.free ? b : a)),
      gpuOfRank: rank => ordinals[rank]!,
    },
    placeOf: rank => gpus.get(ordinals[rank]!)!.node,
    close() {
      for (const node of all) node.close()
    },
  }
}

function requirePeerKernels({ properties: { ordinal, name, capability } }: CudaContext): void {
  if (capability < 90) throw new EngineError('SY_ENGINE_GPU_TOO_OLD', { ordinal, name, capability: capability / 10 })
}

/** Each reaches the memory of all others. */
function connect(contexts: readonly CudaContext[]): void {
  for (const context of contexts)
    for (const other of contexts)
      if (other !== context && !context.enablePeer(other.properties.ordinal))
        throw new EngineError('SY_ENGINE_NO_PEER_ACCESS', { from: context.device, to: other.device })
}

interface Gpu {
  readonly context: CudaContext
  readonly node: NodeDevice
}

function openGpu(ordinal: number): Gpu {
  const device = createCudaDevice({ ordinal })
  const { context, kernels, packer } = device
  const lenders = new Set<CudaMemoryLender>()
  /** Pinned for the ranks of each lender. */
  const pinned = new Map<MemoryLender, HostRegistry>()
  const unpin = (lender: MemoryLender) => {
    pinned.get(lender)?.[Symbol.dispose]()
    pinned.delete(lender)
  }
  const { name, sms, capability } = context.properties
  const addressOf = (span: MemorySpan): number => kernels.addressOf(span)
  const node: NodeDevice = {
    name: `cuda:${ordinal} (${name}, sm_${capability}, ${sms} SMs)`,
    warning: null,
    packer,
    memoryLimit: Number.POSITIVE_INFINITY,
    requireMemory: (bytes, what) => requireFree(context, bytes, what),
    accelerator: { kind: 'cuda', memory: () => context.memory(), fractionStatic: FRACTION_STATIC },
    // Files are mapped by the CPU's addon where there is one.
    mapFileRange: createCpuDevice({ kernels: 'reference' }).mapFileRange,
    createLender(reserve) {
      context.makeCurrent()
      const lender = device.createLender(reserve, 'the weights')
      lenders.add(lender)
      return lender
    },
    reclaim(lender) {
      for (const mine of lenders) {
        if (mine !== lender) continue
        unpin(mine)
        mine[Symbol.dispose]()
        lenders.delete(mine)
      }
    },
    // Few large blocks, so that pinning one never meets the pages of another.
    hostLender: () => new PinnedLender(),
    write: (span, bytes) => context.upload(addressOf(span), bytes),
    loaded() {
      packer.settle()
      device.settle()
    },
    isBusy: stream => context.isBusy(stream),
    exitProcess: code => exitProcess(code, context.libraries),
    forRank(program, of, plan) {
      const placed = placeRank(ordinal, program, of, plan)
      const registry = pinned.get(of.lender) ?? new HostRegistry(context)
      pinned.set(of.lender, registry)
      for (const span of pinnedSpans(placed.device)) registry.pin(hostBuffer(span))
      return placed
    },
    close() {
      context.makeCurrent()
      for (const lender of [...pinned.keys()]) unpin(lender)
      for (const lender of lenders) lender[Symbol.dispose]()
      lenders.clear()
      device[Symbol.dispose]()
    },
  }
  return { context, node }
}

function requireFree(context: CudaContext, bytes: number, what: string): void {
  const { free } = context.memory()
  if (bytes <= free) return
  throw new EngineError('SY_ENGINE_NOT_ENOUGH_MEMORY', {
    what: `${what} on ${context.device}`,
    needed: showBytes(bytes),
    available: showBytes(free),
    remedy: 'Use --dtype bfloat16, end other programs on this GPU, or compute on the CPU: --device cpu.',
  })
}

/** What a rank on a GPU shares with the host. */
const pinnedSpans = ({ slots, logits, peerFault }: CudaRankDevice): MemorySpan[] => [
  ...slots.flatMap(({ mirror, pieces, results, stamps }) => [mirror.span, pieces, results, stamps]),
  ...[logits, peerFault],
]

function placeRank(
  ordinal: number,
  program: Program,
  { lender, host }: RankLenders,
  plan: PlannedSteps,
): PlacedRank & { readonly device: CudaRankDevice } {
  const inputs = lendDeviceInputs(program, lender)
  const logits = program.buffers.find(b => b.name === 'logits')!
  const device = {
    kind: 'cuda',
    ordinal,
    activation: plan.activation,
    graphBatches: plan.graphBatches,
    capture: plan.options.uncaptured !== true,
    inputs,
    slots: Array.from({ length: STEPS_ON_THEIR_WAY }, () => lendStepSlot(program, host)),
    logits: host.lend(program.bounds.logitRows * logits.columns * 4, 'rows of logits'),
    peerFault: host.lend(FAULT_RECORD_BYTES, 'fault record'),
  } as const
  return { device, inputs: inputs.buffers }
}
