// `.pt` files: read as torch.save wrote them, written as torch.load reads them; hostile and mutated ones.
import { readFileSync } from 'node:fs'
import { fileURLToPath } from 'node:url'
import { describe, expect, it } from 'vitest'
import { SwitchyardError } from '../../config/errors.js'
import { CounterRandom } from '../../runtime/random.js'
import { halfToNumber } from '../half-float.js'
import { loadTorchBytes, loadTorchFile, type TorchDtype, TorchTensor, torchFileBytes } from './index.js'

const dumps = new URL('../../../test/fixtures/recorder-dumps/', import.meta.url)
const path = (name: string) => fileURLToPath(new URL(name, dumps))
const expected = JSON.parse(readFileSync(path('expected.json'), 'utf8')) as Record<
  string,
  Record<string, { shape: number[]; dtype: string; sum: number }>
>

function tensorOf(value: unknown, key: string): TorchTensor {
  const tensor = value instanceof Map ? value.get(key) : undefined
  if (!(tensor instanceof TorchTensor)) throw new Error(`${key} is not a tensor`)
  return tensor
}

/** A pre-zip file around a hand-made description and storages: any pickle can be put in it. */
function legacy(description: Uint8Array, storages: [string, number, Uint8Array][], little = true): Uint8Array {
  const pickle = (...ops: (number | string)[]) => [
    0x80,
    2,
    ...ops.flatMap(op => (typeof op === 'string' ? [...op].map(c => c.charCodeAt(0)) : [op])),
    0x2e,
  ]
  const out: number[] = [0x80, 2, 0x8a, 10, 0x6c, 0xfc, 0x9c, 0x46, 0xf9, 0x20, 0x6a, 0xa8, 0x50, 0x19, 0x2e]
  out.push(...pickle('M', 0xe9, 3))
  out.push(...pickle('}', 'U', 13, 'little_endian', little ? 0x88 : 0x89, 's'))
  out.push(...description)
  out.push(...pickle(']', ...storages.flatMap(([key]) => ['U', key.length, key, 'a'])))
  for (const [, count, bytes] of storages) {
    const header = new DataView(new ArrayBuffer(8))
    header.setBigInt64(0, BigInt(count), true)
    out.push(...new Uint8Array(header.buffer), ...bytes)
  }
  return Uint8Array.from(out)
}

interface Window {
  module?: string
  storage: string
  count: number
  shape: number[]
  strides: number[]
  offset?: number
  location?: string
  key?: string
}

/** The pickle text of _rebuild_tensor_v2(...). */
function tensorOps(w: Window): number[] {
  const text = (s: string) => [...s].map(c => c.charCodeAt(0))
  const str = (s: string) => [0x55, s.length, ...text(s)]
  const int = (n: number) => [0x4a, n & 255, (n >> 8) & 255, (n >> 16) & 255, (n >> 24) & 255]
  return [
    ...text('ctorch._utils\n_rebuild_tensor_v2\n(('),
    ...str('storage'),
    ...text(`c${w.module ?? 'torch'}\n${w.storage}\n`),
    ...str(w.key ?? 'k'),
    ...str(w.location ?? 'cpu'),
    ...int(w.count),
    ...text('NtQ'),
    ...int(w.offset ?? 0),
    ...text('('),
    ...w.shape.flatMap(int),
    ...text('t('),
    ...w.strides.flatMap(int),
    ...text('t'),
    0x89,
    ...text('ccollections\nOrderedDict\n)RtR'),
  ]
}
const pickled = (ops: number[]) => Uint8Array.from([0x80, 2, ...ops, 0x2e])

function one(w: Window, bytes: Uint8Array, little = true): TorchTensor {
  const { value } = loadTorchBytes('x.pt', legacy(pickled(tensorOps(w)), [['k', w.count, bytes]], little))
  if (!(value instanceof TorchTensor)) throw new Error('no tensor')
  return value
}

describe('files of torch.save', () => {
  for (const [file, tensors] of Object.entries(expected)) {
    it(`reads ${file}`, () => {
      const { value } = loadTorchFile(path(file))
      for (const [key, want] of Object.entries(tensors)) {
        const tensor = tensorOf(value, key)
        expect(tensor.shape).toEqual(want.shape)
        expect(tensor.dtype).toBe(want.dtype)
        expect(tensor.toFloat64().reduce((a, b) => a + b, 0)).toBe(want.sum)
      }
    })
  }

  it('knows the pre-zip format, whose tensor is a slice of a longer storage', () => {
    const file = loadTorchFile(path('legacy_format.pt'))
    expect(file.format).toBe('torch-legacy')
    const whole = tensorOf(loadTorchFile(path('expert_distribution_recorder_1764420000.0.pt')).value, 'logical_count')
    const slice = tensorOf(file.value, 'logical_count').toFloat64()
    expect(slice).toEqual(whole.toFloat64().subarray(0, slice.length))
  })

  it('reads strided and shared storages', () => {
    const bytes = new Uint8Array(Int32Array.from([0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11]).buffer)
    const ints = { storage: 'IntStorage', count: 12 }
    expect([...one({ ...ints, shape: [3, 4], strides: [1, 3] }, bytes).toFloat64()]).toEqual([
      0, 3, 6, 9, 1, 4, 7, 10, 2, 5, 8, 11,
    ])
    expect([...one({ ...ints, shape: [2, 2, 2], strides: [6, 0, 2], offset: 1 }, bytes).toFloat64()]).toEqual([
      1, 3, 1, 3, 7, 9, 7, 9,
    ])
    expect([...one({ ...ints, shape: [], strides: [], offset: 5 }, bytes).toFloat64()]).toEqual([5])
    expect(one({ ...ints, shape: [3, 0], strides: [1, 1] }, bytes).toFloat64().length).toBe(0)
    const both = pickled(
      [0x28, ...tensorOps({ ...ints, shape: [2], strides: [1] })].concat(
        tensorOps({ ...ints, shape: [2], strides: [5], offset: 2 }),
        [0x74],
      ),
    )
    const { value } = loadTorchBytes('x.pt', legacy(both, [['k', 12, bytes]]))
    const [a, b] = value as [TorchTensor, TorchTensor]
    expect(a.storage).toBe(b.storage)
    expect([[...a.toFloat64()], [...b.toFloat64()]]).toEqual([
      [0, 1],
      [2, 7],
    ])
  })

  it('ignores where a storage lived', () => {
    const bytes = new Uint8Array(BigInt64Array.from([5n, -7n]).buffer)
    const tensor = one(
      { module: 'torch.cuda', storage: 'LongStorage', count: 2, shape: [2], strides: [1], location: 'cuda:3' },
      bytes,
    )
    expect([...tensor.toFloat64()]).toEqual([5, -7])
  })

  const cases: [string, TorchDtype, ArrayBuffer, number[]][] = [
    ['BoolStorage', 'bool', Uint8Array.from([0, 1, 255]).buffer, [0, 1, 1]],
    ['ByteStorage', 'uint8', Uint8Array.from([0, 200, 255]).buffer, [0, 200, 255]],
    ['CharStorage', 'int8', Int8Array.from([-128, 0, 127]).buffer, [-128, 0, 127]],
    ['ShortStorage', 'int16', Int16Array.from([-32768, 0, 32767]).buffer, [-32768, 0, 32767]],
    ['IntStorage', 'int32', Int32Array.from([-(2 ** 31), 0, 7]).buffer, [-(2 ** 31), 0, 7]],
    ['LongStorage', 'int64', BigInt64Array.from([2n ** 53n - 1n, -1n, 0n]).buffer, [2 ** 53 - 1, -1, 0]],
    ['HalfStorage', 'float16', Uint16Array.from([0x3c00, 0xc100, 0x0001]).buffer, [1, -2.5, 2 ** -24]],
    ['BFloat16Storage', 'bfloat16', Uint16Array.from([0x3f80, 0xc020, 0x4049]).buffer, [1, -2.5, 3.140625]],
    ['FloatStorage', 'float32', Float32Array.from([1.5, -2, 1e10]).buffer, [1.5, -2, 1e10]],
    ['DoubleStorage', 'float64', Float64Array.from([0.1, -2, 1e300]).buffer, [0.1, -2, 1e300]],
  ]
  for (const [storage, dtype, buffer, want] of cases) {
    it(`reads ${dtype} of either byte order`, () => {
      const little = one({ storage, count: 3, shape: [3], strides: [1] }, new Uint8Array(buffer))
      expect(little.dtype).toBe(dtype)
      expect([...little.toFloat64()]).toEqual(want)
      const width = buffer.byteLength / 3
      const swapped = new Uint8Array(buffer).map((_, i, all) => all[i - (i % width) + width - 1 - (i % width)]!)
      expect([...one({ storage, count: 3, shape: [3], strides: [1] }, swapped, false).toFloat64()]).toEqual(want)
    })
  }

  it('decodes special halves', () => {
    expect([0x7c00, 0xfc00, 0x7bff, 0x8000].map(halfToNumber)).toEqual([Infinity, -Infinity, 65504, -0])
    expect(halfToNumber(0x7e00)).toBeNaN()
  })

  it('refuses integers beyond 2^53', () => {
    const bytes = new Uint8Array(BigInt64Array.from([2n ** 53n]).buffer)
    const tensor = one({ storage: 'LongStorage', count: 1, shape: [1], strides: [1] }, bytes)
    expect(() => tensor.toFloat64()).toThrow(expect.objectContaining({ code: 'SY_TORCH_INT64_RANGE' }))
  })
})

describe('hostile files', () => {
  const ops = (...parts: (string | number)[]) =>
    pickled(parts.flatMap(p => (typeof p === 'string' ? [...p].map(c => c.charCodeAt(0)) : [p])))
  const code = (description: Uint8Array) => {
    try {
      loadTorchBytes('evil.pt', legacy(description, []))
    } catch (error) {
      return error instanceof SwitchyardError ? `${error.code} ${error.message}` : `not ours: ${String(error)}`
    }
    return 'accepted'
  }

  const globals: [string, string][] = [
    ['posix', 'system'],
    ['builtins', 'eval'],
    ['builtins', '__import__'],
    ['subprocess', 'Popen'],
    ['torch.storage', '_load_from_bytes'],
    ['torch', 'load'],
    ['constructor', 'constructor'],
    ['__proto__', 'toString'],
  ]
  for (const [module, name] of globals) {
    it(`refuses ${module}.${name} by name`, () => {
      expect(code(ops(`c${module}\n${name}\n(`, 'U', 4, 'true', 'tR'))).toContain(`SY_TORCH_GLOBAL`)
      expect(code(ops(`c${module}\n${name}\n`))).toContain(`${module}.${name}`)
      expect(code(ops(0x8c, module.length, module, 0x8c, name.length, name, 0x93))).toContain(`${module}.${name}`)
    })
  }

  it('refuses instructions that build objects or set attributes', () => {
    const dict = 'ccollections\nOrderedDict\n'
    expect(code(ops(`${dict})R}b`))).toMatch(/SY_TORCH_OPCODE .*BUILD/)
    expect(code(ops(`(icollections\nOrderedDict\n`))).toMatch(/SY_TORCH_OPCODE .*INST/)
    expect(code(ops(`(${dict}o`))).toMatch(/SY_TORCH_OPCODE .*OBJ/)
    expect(code(ops(`${dict})`, 0x81))).toMatch(/SY_TORCH_OPCODE .*NEWOBJ/)
    expect(code(ops(0x82, 1))).toMatch(/SY_TORCH_OPCODE .*EXT1/)
    expect(code(ops('(U', 9, '__proto__', '}d'))).toMatch(/SY_TORCH_OPCODE .*DICT/)
    expect(code(ops('2'))).toMatch(/SY_TORCH_OPCODE/)
  })

  it('refuses element types that hold no counts', () => {
    expect(code(ops('ctorch\nComplexFloatStorage\n'))).toContain('SY_TORCH_DTYPE')
    expect(code(ops('ctorch\nfloat8_e4m3fn\n'))).toContain('SY_TORCH_DTYPE')
  })

  it('refuses impossible windows', () => {
    const bytes = new Uint8Array(16)
    const ints = { storage: 'IntStorage', count: 4 }
    const fail = (w: Window) => {
      try {
        one(w, bytes)
        return 'accepted'
      } catch (error) {
        return (error as SwitchyardError).code
      }
    }
    expect(fail({ ...ints, shape: [5], strides: [1] })).toBe('SY_TORCH_DAMAGED')
    expect(fail({ ...ints, shape: [2, 2], strides: [3, 1] })).toBe('SY_TORCH_DAMAGED')
    expect(fail({ ...ints, shape: [2], strides: [1], offset: 3 })).toBe('SY_TORCH_DAMAGED')
    expect(fail({ ...ints, shape: [-1], strides: [1] })).toBe('SY_TORCH_DAMAGED')
    expect(fail({ ...ints, shape: [2], strides: [1, 1] })).toBe('SY_TORCH_DAMAGED')
    expect(fail({ ...ints, shape: [2 ** 30, 2], strides: [0, 1] })).toBe('SY_TORCH_TOO_LARGE')
    expect(fail({ ...ints, shape: [2 ** 21, 2], strides: [0, 1] })).toBe('SY_TORCH_TOO_LARGE')
    expect(fail({ ...ints, shape: [4], strides: [1] })).toBe('accepted')
  })

  it('refuses to copy one list into many dicts', () => {
    const pair = ['U', 1, 'a', 'N', 0x86].flatMap(p => (typeof p === 'string' ? p.charCodeAt(0) : p))
    const list = ['(', ...Array.from({ length: 2000 }, () => pair).flat(), 'l', 'q', 0].flatMap(p =>
      typeof p === 'string' ? p.charCodeAt(0) : p,
    )
    const dict = [...'ccollections\nOrderedDict\nh\0\x85R'].map(c => c.charCodeAt(0))
    expect(code(pickled([...list, ...Array.from({ length: 2 }, () => dict).flat()]))).toBe('accepted')
    expect(code(pickled([...list, ...Array.from({ length: 600 }, () => dict).flat()]))).toContain('SY_TORCH_TOO_LARGE')
  })

  it('names what else a file is', () => {
    const message = (text: string) => {
      try {
        loadTorchBytes('x', new TextEncoder().encode(text))
      } catch (error) {
        return (error as Error).message
      }
      return 'accepted'
    }
    expect(message('')).toContain('empty')
    expect(message('version https://git-lfs.github.com/spec/v1\n')).toContain('Git LFS')
    expect(message('{"logical_count": []}')).toContain('JSON')
    expect(message('PK')).toContain('cut off')
  })

  it('refuses compressed and encrypted members by name', () => {
    const bytes = torchFileBytes({ a: 1 })
    const flip = (field: number, value: number) => {
      const copy = bytes.slice()
      const data = new DataView(copy.buffer)
      let at = copy.length - 22
      at = data.getUint32(at + 16, true)
      data.setUint16(at + field, value, true)
      return copy
    }
    expect(() => loadTorchBytes('x', flip(10, 8))).toThrow('archive/data.pkl of x is compressed (method 8)')
    expect(() => loadTorchBytes('x', flip(8, 1))).toThrow('archive/data.pkl of x is encrypted')
  })
})

describe('writing', () => {
  const bytesOf = (name: string) => new Uint8Array(readFileSync(path(name)))

  /** Zeroes the random serialization id and its checksum (in the descriptor and in the directory). */
  function withoutId(bytes: Uint8Array): string {
    const copy = Buffer.from(bytes)
    const name = Buffer.from('.data/serialization_id')
    const local = copy.indexOf(name)
    const central = copy.lastIndexOf(name)
    const end = copy.indexOf(Buffer.from('PK\x07\x08'), local)
    copy.fill(0, end - 40, end)
    copy.fill(0, end + 4, end + 8)
    const entry = copy.lastIndexOf(Buffer.from('PK\x01\x02'), central)
    copy.fill(0, entry + 16, entry + 20)
    return copy.toString('hex')
  }

  it('writes placement.pt byte for byte as PyTorch did, but for the random id', () => {
    const tensor = tensorOf(loadTorchFile(path('placement.pt')).value, 'physical_to_logical_map')
    const written = torchFileBytes(
      { physical_to_logical_map: { dtype: 'int64', shape: tensor.shape, values: tensor.toFloat64() } },
      'placement',
    )
    expect(withoutId(written)).toBe(withoutId(bytesOf('placement.pt')))
  })

  it('writes the stat dump byte for byte as PyTorch did, but for the random id', () => {
    const name = 'expert_distribution_recorder_1764420000.0'
    const tensor = tensorOf(loadTorchFile(path(`${name}.pt`)).value, 'logical_count')
    const written = torchFileBytes(
      {
        rank: 0,
        logical_count: { dtype: 'int32', shape: tensor.shape, values: tensor.toFloat64() },
        average_utilization_rate_over_window: 0.71,
      },
      name,
    )
    expect(withoutId(written)).toBe(withoutId(bytesOf(`${name}.pt`)))
  })

  it('reads back what it writes', () => {
    const many = Array.from({ length: 300 }, (_, i) => ({ dtype: 'float32' as const, shape: [2], values: [i, -i] }))
    const { value } = loadTorchBytes(
      'x',
      torchFileBytes({ list: many, text: 'héllo', big: 2 ** 40, no: null, yes: true, f: -0.5, minus: -3 }),
    )
    const map = value as Map<string, unknown>
    expect([map.get('text'), map.get('big'), map.get('no'), map.get('yes'), map.get('f'), map.get('minus')]).toEqual([
      'héllo',
      2 ** 40,
      null,
      true,
      -0.5,
      -3,
    ])
    const list = map.get('list') as TorchTensor[]
    expect([...list[299]!.toFloat64()]).toEqual([299, -299])
  })
})

describe('mutated files', () => {
  it('500 of them are read or refused by an error of ours', () => {
    const originals: Uint8Array[] = ['placement.pt', 'expert_distribution_recorder_1764420100.25_0.pt'].map(
      name => new Uint8Array(readFileSync(path(name))),
    )
    originals.push(
      legacy(pickled(tensorOps({ storage: 'IntStorage', count: 4, shape: [2, 2], strides: [2, 1] })), [
        ['k', 4, new Uint8Array(16)],
      ]),
    )
    const random = new CounterRandom(7, 4)
    const outcomes = { read: 0, refused: 0 }
    for (let n = 0; n < 500; n++) {
      const original = originals[n % originals.length]!
      let bytes = original.slice()
      for (let k = 0; k <= n % 4; k++) bytes[random.below(Math.min(bytes.length, 900))] = random.below(256)
      if (n % 5 === 0) bytes = bytes.slice(0, random.below(bytes.length))
      try {
        const visit = (v: unknown): void => {
          if (v instanceof TorchTensor) v.toFloat64()
          else if (v instanceof Map) for (const x of v.values()) visit(x)
        }
        visit(loadTorchBytes('mutant.pt', bytes).value)
        outcomes.read++
      } catch (error) {
        if (!(error instanceof SwitchyardError)) throw error
        outcomes.refused++
      }
    }
    expect(outcomes.read + outcomes.refused).toBe(500)
    expect(outcomes.refused).toBeGreaterThan(250)
  })
})
