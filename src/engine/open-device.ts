// From --device to the device of this node.
import { ConfigError } from '../config/config-errors.js'
import type { EngineFlags } from '../config/flags.js'
import { type CpuDevice, createCpuDevice } from '../device/cpu/index.js'
import { u8View } from '../device/memory.js'
import { openCudaNode } from './cuda/node.js'
import type { NodeDevice } from './node-device.js'

/** `cpu`, or a GPU by number. */
export function deviceChoice({ device, baseGpuId }: EngineFlags): { kind: 'cpu' } | { kind: 'cuda'; ordinal: number } {
  if (device === 'cpu') return { kind: 'cpu' }
  const [, ordinal] = device.split(':')
  if (ordinal !== undefined && baseGpuId !== 0 && Number(ordinal) !== baseGpuId) {
    throw new ConfigError('SY_CONFIG_CONFLICT', { first: `--device ${device}`, second: `--base-gpu-id ${baseGpuId}` })
  }
  return { kind: 'cuda', ordinal: ordinal === undefined ? baseGpuId : Number(ordinal) }
}

/** @throws CudaError SY_CUDA_UNAVAILABLE and others of the device before anything else is read or allocated */
export function openDevice(flags: EngineFlags): NodeDevice {
  const choice = deviceChoice(flags)
  if (choice.kind === 'cuda') return openCudaNode(choice.ordinal)
  return cpuNode(createCpuDevice({ kernels: flags.kernels }))
}

function cpuNode(device: CpuDevice): NodeDevice {
  const { kernels, wasmNode } = device
  return {
    name: device.name,
    warning: kernels.warning ?? null,
    packer: device.packer,
    memoryLimit: device.memoryLimit,
    requireMemory: device.requireMemory,
    mapFileRange: device.mapFileRange,
    createLender: () => device.createLender(),
    reclaim: () => {},
    hostLender: computing => computing,
    write: (span, bytes) => u8View(span).set(bytes),
    loaded: () => {},
    forRank: () => ({ device: { kind: 'cpu', kernels: kernels.kind, wasmNode } }),
    close: () => {},
  }
}
