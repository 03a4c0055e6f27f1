// Turns the pickle of a `.pt` file into plain values and tensors with a whitelist of names: dicts become Maps, tuples and
// lists arrays. Invariant: no code of the file runs; a name outside the whitelist is refused before it is used.

import { Parser } from 'pickleparser'
import { SwitchyardError } from '../../config/errors.js'
import { TorchFileError } from './errors.js'
import { GatedPickleReader } from './pickle-reader.js'
import { DTYPE_BYTES, type TorchDtype, type TorchStorage, TorchTensor } from './tensor.js'

const STORAGE_DTYPES: ReadonlyMap<string, TorchDtype | undefined> = new Map<string, TorchDtype | undefined>([
  ['BoolStorage', 'bool'],
  ['ByteStorage', 'uint8'],
  ['CharStorage', 'int8'],
  ['ShortStorage', 'int16'],
  ['IntStorage', 'int32'],
  ['LongStorage', 'int64'],
  ['HalfStorage', 'float16'],
  ['BFloat16Storage', 'bfloat16'],
  ['FloatStorage', 'float32'],
  ['DoubleStorage', 'float64'],
  ['UntypedStorage', undefined],
])

/** Pairs that OrderedDict(list) may copy per file. */
const MAX_PAIRS = 1_000_000

type Callable = (...args: unknown[]) => unknown

export interface Unpickled {
  readonly value: unknown
  /** Every storage the tensors refer to, by key, still without bytes. */
  readonly storages: ReadonlyMap<string, TorchStorage>
  /** Where the pickle ended. */
  readonly end: number
}

/**
 * Reads one pickle.
 * @throws TorchFileError SY_TORCH_GLOBAL, SY_TORCH_OPCODE, SY_TORCH_DTYPE, SY_TORCH_DAMAGED, SY_TORCH_TOO_LARGE
 */
export function unpickle(file: string, bytes: Uint8Array, start = 0): Unpickled {
  const storages = new Map<string, TorchStorage>()
  const names = new Whitelist(file)
  const reader = new GatedPickleReader(file, bytes, start)
  const parser = new Parser({
    unpicklingTypeOfDictionary: 'Map',
    unpicklingTypeOfSet: 'array',
    nameResolver: { resolve: (module, name) => names.resolve(module, name) },
    persistentResolver: { resolve: (id: unknown) => storageOf(file, id, names, storages) },
  })
  try {
    const value: unknown = parser.read(reader)
    return { value, storages, end: reader.position }
  } catch (error) {
    if (error instanceof SwitchyardError) throw error
    throw new TorchFileError('SY_TORCH_DAMAGED', { file, why: 'its description of the tensors makes no sense' })
  }
}

/** The names a pickle may ask for. Storage and element types are markers: known by identity, an error when called. */
class Whitelist {
  readonly #file: string
  readonly #known = new Map<string, Callable>()
  readonly storageTypes = new Map<unknown, TorchDtype | undefined>()
  readonly dtypes = new Map<unknown, TorchDtype>()

  constructor(file: string) {
    this.#file = file
    const marker = (): Callable => () => {
      throw new TorchFileError('SY_TORCH_DAMAGED', { file, why: 'it calls a type as if it were a function' })
    }
    const copied = { pairs: 0 }
    for (const [name, dtype] of STORAGE_DTYPES) {
      const mark = marker()
      this.storageTypes.set(mark, dtype)
      for (const module of ['torch', 'torch.cuda', 'torch.storage']) this.#known.set(`${module}.${name}`, mark)
    }
    for (const dtype of Object.keys(DTYPE_BYTES) as TorchDtype[]) {
      const mark = marker()
      this.dtypes.set(mark, dtype)
      this.#known.set(`torch.${dtype}`, mark)
    }
    this.#known.set('collections.OrderedDict', (...args) => orderedDict(file, args, copied))
    for (const name of ['__builtin__.set', 'builtins.set', '__builtin__.frozenset', 'builtins.frozenset']) {
      this.#known.set(name, (...args) => setItems(file, args))
    }
    // How protocol 2 spells bytes: latin-1 text and the word latin1. Kept as that text.
    this.#known.set('_codecs.encode', text => {
      if (typeof text !== 'string') throw badArguments(file, '_codecs.encode')
      return text
    })
    this.#known.set('torch.Size', (...args) => {
      if (args.length !== 1 || !Array.isArray(args[0])) throw badArguments(file, 'torch.Size')
      return args[0]
    })
    this.#known.set('torch._utils._rebuild_tensor', (...a) => this.#tensor(a, 4, undefined))
    this.#known.set('torch._utils._rebuild_tensor_v2', (...a) => this.#tensor(a, 6, undefined))
    this.#known.set('torch._utils._rebuild_tensor_v3', (...a) => this.#tensor(a, 7, a[6]))
    this.#known.set('torch._utils._rebuild_parameter', (...a) => {
      if (!(a[0] instanceof TorchTensor)) throw badArguments(file, '_rebuild_parameter')
      return a[0]
    })
  }

  resolve(module: string, name: string): Callable {
    const full = `${module}.${name}`
    const found = this.#known.get(full)
    if (found !== undefined) return found
    const isType =
      /^torch(\.cuda|\.storage)?$/.test(String(module)) && /Storage$|^(q|float8|complex)/i.test(String(name))
    if (isType) throw new TorchFileError('SY_TORCH_DTYPE', { file: this.#file, dtype: full })
    throw new TorchFileError('SY_TORCH_GLOBAL', { file: this.#file, name: full.slice(0, 200) })
  }

  /** (storage, offset, size, strides, …) → tensor. */
  #tensor(args: unknown[], least: number, dtypeMark: unknown): TorchTensor {
    const [storage, offset, shape, strides] = args
    if (args.length < least || !isStorage(storage) || !Array.isArray(shape) || !Array.isArray(strides)) {
      throw badArguments(this.#file, '_rebuild_tensor')
    }
    const dtype = this.dtypes.get(dtypeMark) ?? storage.dtype
    if (dtype === undefined) throw new TorchFileError('SY_TORCH_DTYPE', { file: this.#file, dtype: 'untyped bytes' })
    return new TorchTensor(this.#file, storage, { dtype, shape, strides, offset: offset as number })
  }
}

/** `copied` counts pairs over the whole file: a short file must not make a long list into many dicts. */
function orderedDict(file: string, args: unknown[], copied: { pairs: number }): Map<unknown, unknown> {
  if (args.length === 0) return new Map()
  const pairs = args[0]
  if (!Array.isArray(pairs) || !pairs.every(p => Array.isArray(p) && p.length === 2)) {
    throw badArguments(file, 'OrderedDict')
  }
  copied.pairs += pairs.length
  if (copied.pairs > MAX_PAIRS) {
    throw new TorchFileError('SY_TORCH_TOO_LARGE', {
      file,
      what: 'the size of its dicts',
      size: copied.pairs,
      limit: MAX_PAIRS,
    })
  }
  return new Map(pairs as [unknown, unknown][])
}

/** A Python set as an array of its items (the list it was made from, not a copy). */
function setItems(file: string, args: unknown[]): unknown[] {
  const [items] = args
  if (args.length > 1 || (args.length === 1 && !Array.isArray(items))) throw badArguments(file, 'set')
  return Array.isArray(items) ? items : []
}

function badArguments(file: string, what: string): TorchFileError {
  return new TorchFileError('SY_TORCH_DAMAGED', { file, why: `${what} is called with the wrong arguments` })
}

// Marks objects made here, so that a dict in the file cannot pose as a storage.
const STORAGE = new WeakSet<object>()

function isStorage(value: unknown): value is TorchStorage {
  return typeof value === 'object' && value !== null && STORAGE.has(value)
}

/** ('storage', type, key, location, elements[, view]) → the storage of that key, one object however often it is named. */
function storageOf(file: string, id: unknown, names: Whitelist, storages: Map<string, TorchStorage>): TorchStorage {
  if (!Array.isArray(id) || id[0] !== 'storage' || id.length < 5) {
    throw new TorchFileError('SY_TORCH_DAMAGED', { file, why: 'it refers to data that are not a tensor storage' })
  }
  const [, type, rawKey, location, elements, view] = id as unknown[]
  if (!names.storageTypes.has(type)) {
    throw new TorchFileError('SY_TORCH_DAMAGED', { file, why: 'a storage has no element type' })
  }
  if (view !== undefined && view !== null) {
    throw new TorchFileError('SY_TORCH_NOT_TORCH', { file, why: 'it uses storage views of PyTorch before 0.4' })
  }
  if (typeof elements !== 'number' || !Number.isSafeInteger(elements) || elements < 0 || typeof rawKey !== 'string') {
    throw new TorchFileError('SY_TORCH_DAMAGED', { file, why: 'a storage has an impossible size' })
  }
  const dtype = names.storageTypes.get(type)
  const byteLength = elements * (dtype === undefined ? 1 : DTYPE_BYTES[dtype])
  const known = storages.get(rawKey)
  if (known !== undefined) {
    if (known.dtype !== dtype || known.byteLength !== byteLength) {
      throw new TorchFileError('SY_TORCH_DAMAGED', { file, why: `storage ${rawKey} is described in two ways` })
    }
    return known
  }
  const storage: TorchStorage = {
    key: rawKey,
    dtype,
    location: String(location),
    byteLength,
    bytes: undefined,
    littleEndian: true,
  }
  STORAGE.add(storage)
  storages.set(rawKey, storage)
  return storage
}
