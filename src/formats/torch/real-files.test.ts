// Files written by PyTorch 2.11 and NumPy 2.5 on a machine with a GPU: every element type, strided, expanded, sliced and
// shared storages, CUDA locations, both file formats, and one file that would run a command when unpickled.
import { readFileSync } from 'node:fs'
import { fileURLToPath } from 'node:url'
import { describe, expect, it } from 'vitest'
import { loadNpyFile } from '../npy/index.js'
import { loadTorchFile, type TorchTensor } from './index.js'

const path = (name: string) => fileURLToPath(new URL(`../../../test/fixtures/torch/${name}`, import.meta.url))
interface Want {
  readonly shape: number[]
  readonly dtype: string
  readonly values: number | number[] | number[][]
}
const want = JSON.parse(readFileSync(path('cases.json'), 'utf8')) as Record<string, Want>

function tensorsOf(file: string): Map<string, TorchTensor> {
  const { value } = loadTorchFile(path(file))
  return (value as Map<string, Map<string, TorchTensor>>).get('tensors')!
}

describe('files written by PyTorch', () => {
  for (const [file, format] of [
    ['cases.pt', 'torch-zip'],
    ['cases_legacy.pt', 'torch-legacy'],
  ] as const) {
    it(`${file}: all tensors`, () => {
      expect(loadTorchFile(path(file)).format).toBe(format)
      const tensors = tensorsOf(file)
      expect([...tensors.keys()]).toEqual(Object.keys(want))
      for (const [name, { shape, dtype, values }] of Object.entries(want)) {
        const tensor = tensors.get(name)!
        expect([name, tensor.dtype, tensor.shape]).toEqual([name, dtype, shape])
        expect([name, ...tensor.toFloat64()]).toEqual([name, ...[values].flat(3)])
      }
    })

    it(`${file}: views share one storage, and where it lived does not matter`, () => {
      const tensors = tensorsOf(file)
      expect(tensors.get('transposed')!.storage).toBe(tensors.get('sliced')!.storage)
      expect(tensors.get('expanded')!.strides[0]).toBe(0)
      expect(tensors.get('cuda')!.storage.location).toBe('cuda:0')
    })
  }

  it('plain Python values', () => {
    const plain = (loadTorchFile(path('cases.pt')).value as Map<string, Map<string, unknown>>).get('plain')!
    expect(plain.get('size')).toEqual([2, 3])
    expect((plain.get('nested') as Map<string, unknown>).get('list')).toEqual([1, 2.5, 'x', null, true, [1, 2]])
    expect([plain.get('big'), plain.get('neg'), plain.get('set')]).toEqual([2 ** 40, -7, [1, 2]])
  })

  it('refuses 8-bit floats and a command, by name', () => {
    expect(() => loadTorchFile(path('float8.pt'))).toThrow('torch.float8_e4m3fn')
    expect(() => loadTorchFile(path('evil.pt'))).toThrow('posix.system')
  })

  it('reads a big-endian, column-major NPY file', () => {
    const array = loadNpyFile(path('fortran.npy'))
    const base = JSON.parse(readFileSync(path('base.json'), 'utf8')) as number[][]
    expect([array.dtype, array.shape]).toEqual(['>i8', [6, 8]])
    expect([...array.values]).toEqual(base.flat())
  })
})
