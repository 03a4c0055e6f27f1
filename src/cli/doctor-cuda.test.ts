// What doctor says of GPUs, from reports of machines with and without drivers, libraries and links.
import { expect, test } from 'vitest'
import type { CudaReport } from '../device/cuda/report.js'
import { examineCuda } from '../device/cuda/report.js'
import { cudaChecks, linksInWords } from './doctor-cuda.js'

const library = (kind: 'driver' | 'nvrtc' | 'cublaslt', there: boolean) => ({
  kind,
  title: `The ${kind} (does things)`,
  path: there ? `/lib/${kind}.so` : null,
  fix: there ? '' : `install ${kind}`,
})
const gpu = (ordinal: number, capability: number): CudaReport['gpus'][number] => ({
  ordinal,
  name: 'Some GPU',
  capability,
  sms: 132,
  sharedBytesPerBlock: 232448,
  sharedBytesPerSm: 233472,
  l2Bytes: 60 * 2 ** 20,
  memoryBytes: 140 * 2 ** 30,
})
const report = (changes: Partial<CudaReport>): CudaReport => ({
  usable: true,
  missing: '',
  fix: '',
  libraries: [library('driver', true), library('nvrtc', true), library('cublaslt', true)],
  driver: '13.0',
  nvrtc: '13.0',
  gpus: [gpu(0, 90)],
  links: [],
  cache: '/cache/cuda',
  ...changes,
})

test('a machine without a driver is well, and hears how to get one', () => {
  const checks = cudaChecks(
    report({
      usable: false,
      missing: 'libcuda was not found',
      fix: 'Install it',
      libraries: [library('driver', false)],
      gpus: [],
    }),
  )
  expect(checks).toHaveLength(1)
  expect(checks[0]).toMatchObject({ name: 'cuda', status: 'ok', fix: 'for --device cuda: install it' })
  expect(checks[0]!.found).toContain('libcuda was not found')
})

test('a driver without libraries is a warning for each', () => {
  const checks = cudaChecks(
    report({
      usable: false,
      missing: 'NVRTC',
      fix: 'Get it',
      libraries: [library('driver', true), library('nvrtc', false)],
    }),
  )
  expect(checks.filter(({ status }) => status === 'warn').map(({ name }) => name)).toEqual(['cuda', 'The nvrtc'])
  expect(checks.find(({ name }) => name === 'The nvrtc')!.fix).toBe('install nvrtc')
})

test('GPUs are listed with what matters, old ones with a warning', () => {
  const checks = cudaChecks(report({ gpus: [gpu(0, 90), gpu(1, 75)] }))
  const [first, second] = checks.filter(({ name }) => /^gpu \d/.test(name))
  expect(first).toMatchObject({ name: 'gpu 0', status: 'ok' })
  expect(first!.found).toBe('Some GPU: 132 SMs, 140.0 GiB, L2 60.0 MiB, compute capability 9.0')
  expect(second).toMatchObject({ name: 'gpu 1', status: 'warn' })
})

test('links are told together when they are alike', () => {
  const link = (from: number, to: number, access: boolean, nativeAtomics: boolean) => ({
    from,
    to,
    access,
    nativeAtomics,
    rank: 0,
  })
  expect(linksInWords([link(0, 1, true, true), link(1, 0, true, true)])).toBe('all pairs: peer access, native atomics')
  expect(linksInWords([link(0, 1, true, false), link(0, 2, false, false), link(1, 0, true, false)])).toBe(
    '0→1 1→0: peer access; 0→2: no peer access',
  )
})

test('what hides GPUs is named', () => {
  const hidden = examineCuda({ SWITCHYARD_NO_CUDA: '1', SWITCHYARD_CACHE_DIR: '/c' })
  expect(hidden).toMatchObject({ usable: false, driver: null, gpus: [], links: [], cache: '/c/cuda' })
  expect(hidden.missing).toContain('SWITCHYARD_NO_CUDA=1')
  expect(hidden.libraries.every(({ path, fix }) => path === null && fix !== '')).toBe(true)
})
