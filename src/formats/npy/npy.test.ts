// NPY files: every dtype and version, Fortran order, what is refused, mutated files.
import { describe, expect, it } from 'vitest'
import { SwitchyardError } from '../../config/errors.js'
import { CounterRandom } from '../../runtime/random.js'
import { loadNpyBytes, npyBytes } from './index.js'

function npy(header: string, data: ArrayBuffer, version = 1): Uint8Array {
  const size = version === 1 ? 2 : 4
  const text = new TextEncoder().encode(`${header}\n`)
  const out = new Uint8Array(8 + size + text.length + data.byteLength)
  out.set([0x93, 0x4e, 0x55, 0x4d, 0x50, 0x59, version, 0, text.length & 255, text.length >> 8])
  out.set(text, 8 + size)
  out.set(new Uint8Array(data), 8 + size + text.length)
  return out
}
const header = (descr: string, shape: string, fortran = 'False') =>
  `{'descr': '${descr}', 'fortran_order': ${fortran}, 'shape': (${shape}), }`

describe('npy', () => {
  it('reads what it writes', () => {
    for (const values of [
      Int32Array.from([1, -2, 3, 4, 5, 6]),
      Float32Array.from([1, 2, 3, 4, 0.5, 6]),
      Float64Array.from([0.1, 2, 3, 4, 5, 6]),
    ]) {
      const bytes = npyBytes([1, 2, 3], values)
      expect((bytes.length - values.byteLength) % 64).toBe(0)
      const back = loadNpyBytes('x', bytes)
      expect(back.shape).toEqual([1, 2, 3])
      expect([...back.values]).toEqual([...values])
    }
    expect(loadNpyBytes('x', npyBytes([3], Int32Array.from([1, 2, 3]))).shape).toEqual([3])
  })

  const cases: [string, ArrayBuffer, number[]][] = [
    ['|b1', Uint8Array.from([0, 1]).buffer, [0, 1]],
    ['|u1', Uint8Array.from([255, 1]).buffer, [255, 1]],
    ['|i1', Int8Array.from([-1, 1]).buffer, [-1, 1]],
    ['<u2', Uint16Array.from([65535, 1]).buffer, [65535, 1]],
    ['<i2', Int16Array.from([-1, 1]).buffer, [-1, 1]],
    ['<f2', Uint16Array.from([0x3c00, 0xc100]).buffer, [1, -2.5]],
    ['<u4', Uint32Array.from([4294967295, 1]).buffer, [4294967295, 1]],
    ['<i4', Int32Array.from([-1, 1]).buffer, [-1, 1]],
    ['>i4', Uint8Array.from([0, 0, 1, 0, 255, 255, 255, 255]).buffer, [256, -1]],
    ['<f4', Float32Array.from([-1.5, 1]).buffer, [-1.5, 1]],
    ['<u8', BigUint64Array.from([2n ** 53n - 1n, 1n]).buffer, [2 ** 53 - 1, 1]],
    ['<i8', BigInt64Array.from([-5n, 1n]).buffer, [-5, 1]],
    ['<f8', Float64Array.from([0.1, 1]).buffer, [0.1, 1]],
  ]
  for (const [dtype, data, want] of cases) {
    it(`reads ${dtype}, versions 1 to 3`, () => {
      for (const version of [1, 2, 3])
        expect([...loadNpyBytes('x', npy(header(dtype, '2,'), data, version)).values]).toEqual(want)
    })
  }

  it('turns Fortran order into row-major order', () => {
    const array = loadNpyBytes('x', npy(header('<i4', '2, 3', 'True'), Int32Array.from([1, 2, 3, 4, 5, 6]).buffer))
    expect([...array.values]).toEqual([1, 3, 5, 2, 4, 6])
  })

  const refused: [string, Uint8Array, string][] = [
    ['other files', new TextEncoder().encode('hello, this is text'), 'SY_NPY_NOT_NPY'],
    ['npz archives', new TextEncoder().encode('PK\x03\x04........'), 'SY_NPY_NOT_NPY'],
    ['object arrays', npy(header('|O', '2,'), new ArrayBuffer(16)), 'SY_NPY_DTYPE'],
    [
      'records',
      npy(`{'descr': [('a', '<i4')], 'fortran_order': False, 'shape': (2,), }`, new ArrayBuffer(8)),
      'SY_NPY_DTYPE',
    ],
    ['strings', npy(header('<U3', '2,'), new ArrayBuffer(24)), 'SY_NPY_DTYPE'],
    ['short data', npy(header('<i4', '3,'), new ArrayBuffer(8)), 'SY_NPY_DAMAGED'],
    ['huge shapes', npy(header('<i4', '99999999, 99999999'), new ArrayBuffer(8)), 'SY_NPY_TOO_LARGE'],
    ['integers beyond 2^53', npy(header('<i8', '1,'), BigInt64Array.from([2n ** 60n]).buffer), 'SY_NPY_INT64_RANGE'],
    ['unknown versions', npy(header('<i4', '1,'), new ArrayBuffer(4), 9), 'SY_NPY_NOT_NPY'],
  ]
  for (const [what, bytes, code] of refused) {
    it(`refuses ${what}`, () => {
      expect(() => loadNpyBytes('x', bytes)).toThrow(expect.objectContaining({ code }))
    })
  }

  it('500 mutated files are read or refused by an error of ours', () => {
    const original = npyBytes([2, 3], Float64Array.from([1, 2, 3, 4, 5, 6]))
    const random = new CounterRandom(11, 4)
    let refused = 0
    for (let n = 0; n < 500; n++) {
      let bytes = original.slice()
      for (let k = 0; k <= n % 4; k++) bytes[random.below(80)] = random.below(256)
      if (n % 5 === 0) bytes = bytes.slice(0, random.below(bytes.length))
      try {
        loadNpyBytes('x', bytes)
      } catch (error) {
        if (!(error instanceof SwitchyardError)) throw error
        refused++
      }
    }
    expect(refused).toBeGreaterThan(200)
  })
})
