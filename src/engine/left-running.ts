// Devices that could not be closed, because kernels of ranks that have ended still run: giving their memory back would wait for those,
// in the main thread and maybe for ever. They are closed as soon as nothing runs; a process that ends before does not wait.
import type { NodeDevice } from './node-device.js'

type Leaving = Pick<NodeDevice, 'exitProcess'>

/** Milliseconds between two looks. */
const LOOK_MS = 250

/** Held here, so that memory which the device reaches is not given back by the collector. */
const left = new Set<Leaving>()

/** @param close gives the device back; called once nothing runs on it any more */
export function leaveRunning(device: Leaving, isBusy: () => boolean, close: () => void): void {
  const timer = setInterval(() => {
    if (isBusy()) return
    clearInterval(timer)
    left.delete(device)
    if (left.size === 0) process.off('exit', exitAtOnce)
    close()
  }, LOOK_MS)
  timer.unref()
  if (left.size === 0) process.on('exit', exitAtOnce)
  left.add(device)
}

/** The drivers' own work at an exit waits for what runs, too. */
function exitAtOnce(code: number): void {
  for (const device of left) device.exitProcess?.(code)
}
