// Devices that are in use when their engine or the process ends. A usual exit ends the threads of ranks, and the driver does its own work:
// both wait for native code, and a thread that is ended while it is in some may crash the process. So a process with such a device open
// ends at once instead.
import type { NodeDevice } from './node-device.js'

type Exiting = Pick<NodeDevice, 'exitProcess'>

/** Milliseconds between two looks. */
const LOOK_MS = 250

/** Held here, so that memory which the device reaches is not given back by the collector. */
const open = new Set<Exiting>()

/** From when ranks start on a device. @returns to be called when nothing uses it any more */
export function openDeviceUntil(device: Exiting): () => void {
  if (open.size === 0) process.on('exit', exitAtOnce)
  open.add(device)
  return () => {
    open.delete(device)
    if (open.size === 0) process.off('exit', exitAtOnce)
  }
}

/**
 * Kernels of ranks that have ended still run: giving memory back would wait for those, in the main thread and maybe for ever.
 * @param close gives the device back; called once nothing runs on it any more
 */
export function closeLater(isBusy: () => boolean, close: () => void): void {
  const timer = setInterval(() => {
    if (isBusy()) return
    clearInterval(timer)
    close()
  }, LOOK_MS)
  timer.unref()
}

function exitAtOnce(code: number): void {
  for (const device of open) device.exitProcess?.(code)
}
