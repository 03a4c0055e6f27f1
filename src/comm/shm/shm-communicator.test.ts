// The suite of the communicator contract over shared memory.
import { HostMemoryLender } from '../../device/memory.js'
import { ControlBlock } from '../../runtime/control.js'
import { communicatorSuite } from '../communicator.suite.js'
import { lendExchange } from './exchange.js'
import { ShmCommunicator } from './shm-communicator.js'

communicatorSuite('shared memory', (size, payloadBytes) => {
  const control = ControlBlock.create(size)
  const ranks = Array.from({ length: size }, (_, r) => r)
  const memory = lendExchange(new HostMemoryLender(), 'test', size, payloadBytes)
  return ranks.map(rank => new ShmCommunicator(control, { name: 'test', index: 0, ranks, memory }, rank))
})
