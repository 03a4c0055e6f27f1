// Collectives of ranks: the contract, and its implementation over a node's shared memory.
export type { CollectiveTag, Communicator, RowRange } from './communicator.js'
export { CommError } from './errors.js'
export { type ExchangeMemory, lendExchange } from './shm/exchange.js'
export { ShmCommunicator, type ShmGroup } from './shm/shm-communicator.js'
