// The part of `switchyard doctor` about GPUs: one check a line. A machine without an NVIDIA driver is a machine that computes
// on its CPU, and all is well; one with a driver and missing libraries gets a warning.
import type { CudaReport } from '../device/cuda/report.js'
import type { Check } from './doctor-check.js'
import { bytes } from './report.js'

export function cudaChecks(report: CudaReport): Check[] {
  const { libraries, driver, nvrtc, gpus, links, usable, missing, fix } = report
  const hasDriver = libraries.some(({ kind, path }) => kind === 'driver' && path !== null)
  if (!hasDriver) {
    return [
      {
        name: 'cuda',
        status: 'ok',
        found: `no GPU can be used, the CPU will be: ${missing}`,
        fix: `for --device cuda: ${lower(fix)}`,
      },
    ]
  }
  const versions = [driver && `driver for CUDA ${driver}`, nvrtc && `NVRTC ${nvrtc}`].filter(Boolean).join(', ')
  return [
    {
      name: 'cuda',
      status: usable ? 'ok' : 'warn',
      found: usable ? `${versions}; kernels are kept in ${report.cache}` : missing,
      fix: usable ? '' : lower(fix),
    },
    ...libraries.map(({ title, path, fix: how }): Check => {
      const name = title.split(' (')[0]!
      return path === null
        ? { name, status: 'warn', found: 'not found', fix: how }
        : { name, status: 'ok', found: path, fix: '' }
    }),
    ...gpus.map(
      (gpu): Check => ({
        name: `gpu ${gpu.ordinal}`,
        status: gpu.capability < 80 ? 'warn' : 'ok',
        found: `${gpu.name}: ${gpu.sms} SMs, ${bytes(gpu.memoryBytes)}, L2 ${bytes(gpu.l2Bytes)}, compute capability ${(gpu.capability / 10).toFixed(1)}`,
        fix: gpu.capability < 80 ? 'kernels need compute capability 8.0 or later' : '',
      }),
    ),
    ...(gpus.length > 1 ? [{ name: 'gpu links', status: 'ok' as const, found: linksInWords(links), fix: '' }] : []),
  ]
}

/** Groups of pairs that are alike: "all 2 reach each other (native atomics)". */
export function linksInWords(links: CudaReport['links']): string {
  const kinds = new Map<string, string[]>()
  for (const { from, to, access, nativeAtomics } of links) {
    const kind = !access ? 'no peer access' : nativeAtomics ? 'peer access, native atomics' : 'peer access'
    kinds.set(kind, [...(kinds.get(kind) ?? []), `${from}→${to}`])
  }
  if (kinds.size === 1) return `all pairs: ${[...kinds.keys()][0]}`
  return [...kinds].map(([kind, pairs]) => `${pairs.join(' ')}: ${kind}`).join('; ')
}

const lower = (text: string): string => text.charAt(0).toLowerCase() + text.slice(1)
