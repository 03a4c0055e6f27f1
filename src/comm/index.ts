// Collectives of ranks and the buffers of expert parallelism: the contracts, and their implementations over a node's
// shared memory.
export type { CollectiveTag, Communicator, Parity, RowRange, Window } from './communicator.js'
export { CommError, ExpertBufferError } from './errors.js'
export type * from './expert-buffer.js'
export {
  type EpBytes,
  type ExpertBufferConfig,
  expertBufferBytes,
  type LowLatencyConfig,
  type NormalConfig,
  type RingConfig,
  ringSources,
} from './expert-buffer-config.js'
export { computeLayout, type DispatchLayout, memberOfExpert } from './layout.js'
export { type ExpertBufferMemory, lendExpertBuffer } from './shm/ep/memory.js'
export { ShmExpertBuffer, type ShmExpertBufferOptions } from './shm/ep/shm-expert-buffer.js'
export { type ExchangeMemory, lendExchange } from './shm/exchange.js'
export { ShmCommunicator, type ShmGroup } from './shm/shm-communicator.js'
export { type Payload, WIRE_DTYPES, type WireDtype, type WireFormat, type WireRows, wireFormat } from './wire/format.js'
export type { WireKernels } from './wire/kernels.js'
export { createWireKernels } from './wire/native.js'
