// Read bandwidth of one core, measured with the device's own probe over memory much larger than the caches.
import type { CpuDevice } from '../../device/cpu/index.js'
import { u8View } from '../../device/memory.js'

const PROBE_BYTES = 256 << 20

/** Bytes per second, the best of a few passes. */
export function readBandwidth(device: CpuDevice, passes = 5): number {
  const span = device.createLender().lend(PROBE_BYTES, 'bandwidth probe')
  // Untouched pages may all be the same page of zeros, which fits a cache.
  u8View(span).fill(1)
  let best = 0
  for (let i = 0; i < passes; i++) best = Math.max(best, device.readBandwidth(span))
  return best
}
