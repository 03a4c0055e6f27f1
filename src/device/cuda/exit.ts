// An exit of the process that waits for no kernel: the driver's own work at a usual exit does.
import { type CudaLibraries, requireLibraries } from './libraries.js'

/** Ends the process now. What others still wanted to do at its end is not done; output that was written is out. */
export function exitProcess(code: number, { koffi }: Pick<CudaLibraries, 'koffi'> = requireLibraries()): void {
  koffi.load(null).func('_exit', 'void', ['int'])(code)
}
