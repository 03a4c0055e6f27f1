// Errors of parallel sizes: found before a rank starts, with the numbers that would work.
import { errorArea } from '../config/errors.js'

export class ParallelError extends errorArea('Parallel', {
  SY_PARALLEL_SIZES: {
    status: 400,
    message: 'the parallel sizes do not fit: {what}',
    remedy: '{remedy}',
  },
  SY_PARALLEL_NOT_SUPPORTED: {
    status: 400,
    message: '{flag} {value} is not supported yet',
    remedy: '{remedy}',
  },
}) {}
