// The suite of the expert-buffer contract over shared memory, with every kind of wire kernels.
import { HostMemoryLender } from '../../../device/memory.js'
import { expertBufferSuite, type MakeExpertBuffers } from '../../expert-buffer.suite.js'
import { createWireKernels } from '../../wire/native.js'
import { referenceWireKernels } from '../../wire/reference.js'
import { lendExpertBuffer } from './memory.js'
import { ShmExpertBuffer } from './shm-expert-buffer.js'

const over =
  (kernels: typeof referenceWireKernels): MakeExpertBuffers =>
  config => {
    const memory = lendExpertBuffer(new HostMemoryLender(), config)
    return memory.ranks.map(rank => new ShmExpertBuffer(memory, rank, { kernels }))
  }

const native = createWireKernels('auto')
if (native !== referenceWireKernels) expertBufferSuite('shared memory, native kernels', over(native), { shapes: 1000 })
expertBufferSuite('shared memory, reference kernels', over(referenceWireKernels), {
  shapes: native === referenceWireKernels ? 1000 : 100,
})
