// From --device to the device of this node.
import { ConfigError } from '../config/config-errors.js'
import type { EngineFlags } from '../config/flags.js'
import { type CpuDevice, createCpuDevice } from '../device/cpu/index.js'
import { u8View } from '../device/memory.js'
import { openCudaNode } from './cuda/node.js'
import type { NodeDevice } from './node-device.js'

/** `cpu`, or the GPU of each rank by number. @throws ConfigError SY_CONFIG_CONFLICT */
export function deviceChoice({ device, baseGpuId, tpSize }: EngineFlags): DeviceChoice {
  if (device === 'cpu') return { kind: 'cpu' }
  const named = device.split(':')[1]?.split(',').map(Number) ?? []
  const conflict = (second: string): never => {
    throw new ConfigError('SY_CONFIG_CONFLICT', { first: `--device ${device}`, second })
  }
  if (named.length > 1 && named.length !== tpSize) conflict(`--tp-size ${tpSize}`)
  const base = named[0] ?? baseGpuId
  if (named.length > 0 && baseGpuId !== 0 && base !== baseGpuId) conflict(`--base-gpu-id ${baseGpuId}`)
  const ordinals = named.length > 1 ? named : Array.from({ length: tpSize }, (_, rank) => base + rank)
  return { kind: 'cuda', ordinals }
}

type DeviceChoice = { readonly kind: 'cpu' } | { readonly kind: 'cuda'; readonly ordinals: readonly number[] }

/** @throws CudaError SY_CUDA_UNAVAILABLE and others of the device before anything else is read or allocated */
export function openDevice(flags: EngineFlags): NodeDevice {
  const choice = deviceChoice(flags)
  if (choice.kind === 'cuda') return openCudaNode(choice.ordinals)
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
