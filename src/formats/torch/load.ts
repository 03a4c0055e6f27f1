// Reads a `.pt` file of torch.save: the zip form (PyTorch 1.6 and later) and the older stream of pickles.
// Storages that tensors refer to are read whole, once each; other members are not read.
// Invariant: nothing of the file is executed (see unpickle.ts). Not for TorchScript archives: refused by name.

import { type ByteSource, FileSource, MemorySource } from './byte-source.js'
import { TorchFileError } from './errors.js'
import { DTYPE_BYTES, type TorchStorage } from './tensor.js'
import { unpickle } from './unpickle.js'
import { looksLikeZip, readZipDirectory, readZipMember } from './zip.js'

/** Bytes a description may have: per_token dumps list every input id in it. */
const MAX_DESCRIPTION = 2 ** 29
const MAX_STORAGE = 2 ** 32
const MAX_LEGACY = 2 ** 30

/** PROTO 2, LONG1 of ten bytes: the magic number every pre-zip file begins with. */
const LEGACY_MAGIC = [0x80, 2, 0x8a, 10, 0x6c, 0xfc, 0x9c, 0x46, 0xf9, 0x20, 0x6a, 0xa8, 0x50, 0x19, 0x2e]
const LEGACY_PROTOCOL = 1001

export interface TorchFile {
  readonly format: 'torch-zip' | 'torch-legacy'
  /** What was saved: dicts as Map, lists and tuples as arrays, tensors as TorchTensor. */
  readonly value: unknown
}

/** Reads a file from disk. @throws TorchFileError */
export function loadTorchFile(path: string): TorchFile {
  using source = new FileSource(path)
  return load(source)
}

/** Reads a file that is already in memory; `name` stands for the path in errors. @throws TorchFileError */
export function loadTorchBytes(name: string, bytes: Uint8Array): TorchFile {
  return load(new MemorySource(name, bytes))
}

function load(source: ByteSource): TorchFile {
  if (looksLikeZip(source)) return { format: 'torch-zip', value: loadZip(source) }
  const head = source.read(0, Math.min(source.size, 512))
  if (LEGACY_MAGIC.every((byte, i) => head[i] === byte)) return { format: 'torch-legacy', value: loadLegacy(source) }
  throw new TorchFileError('SY_TORCH_NOT_TORCH', { file: source.name, why: describeHead(head) })
}

function describeHead(head: Uint8Array): string {
  if (head.length === 0) return 'it is empty'
  const text = new TextDecoder('latin1').decode(head)
  if (text.startsWith('version https://git-lfs')) return 'it is a Git LFS pointer, not the file itself'
  if (text.slice(257, 262) === 'ustar') return 'it is a tar archive (PyTorch before 0.1.10)'
  if (text.startsWith('PK')) return 'its zip archive is cut off'
  if (head[0] === 0x80) return 'it is a bare Python pickle'
  if (text.startsWith('\x93NUMPY')) return 'it is an NPY file: name it .npy'
  if (/^\s*[[{]/.test(text)) return 'it looks like JSON: name it .json'
  return 'it does not begin like one'
}

function loadZip(source: ByteSource): unknown {
  const members = readZipDirectory(source)
  const description = [...members.keys()].find(name => name === 'data.pkl' || /^[^/]+\/data\.pkl$/.test(name))
  if (description === undefined) {
    throw new TorchFileError('SY_TORCH_NOT_TORCH', { file: source.name, why: 'its zip archive holds no data.pkl' })
  }
  const prefix = description.slice(0, -'data.pkl'.length)
  if (members.has(`${prefix}constants.pkl`)) {
    throw new TorchFileError('SY_TORCH_NOT_TORCH', {
      file: source.name,
      why: 'it is a TorchScript archive (a program)',
    })
  }
  const pickle = members.get(description)!
  limit(source, 'its description', pickle.size, MAX_DESCRIPTION)
  const { value, storages } = unpickle(source.name, readZipMember(source, pickle))
  const order = members.get(`${prefix}byteorder`)
  const littleEndian = order === undefined || new TextDecoder().decode(readZipMember(source, order)) !== 'big'
  for (const storage of storages.values()) {
    const member = members.get(`${prefix}data/${storage.key}`)
    if (member === undefined || member.size < storage.byteLength) {
      throw new TorchFileError('SY_TORCH_DAMAGED', {
        file: source.name,
        why: `the data of storage ${storage.key} are ${member === undefined ? 'missing' : 'cut off'}`,
      })
    }
    limit(source, `storage ${storage.key}`, member.size, MAX_STORAGE)
    storage.bytes = readZipMember(source, member)
    storage.littleEndian = littleEndian
  }
  return value
}

/** Magic, protocol, machine facts, the value, the list of storage keys: five pickles; then per key a count and its bytes. */
function loadLegacy(source: ByteSource): unknown {
  limit(source, 'a file of the pre-zip format', source.size, MAX_LEGACY)
  const file = source.name
  const bytes = source.read(0, source.size)
  const protocol = unpickle(file, bytes, LEGACY_MAGIC.length)
  if (protocol.value !== LEGACY_PROTOCOL) {
    throw new TorchFileError('SY_TORCH_NOT_TORCH', { file, why: `its protocol is ${String(protocol.value)}` })
  }
  const machine = unpickle(file, bytes, protocol.end)
  const littleEndian = !(machine.value instanceof Map) || machine.value.get('little_endian') !== false
  const main = unpickle(file, bytes, machine.end)
  const keys = unpickle(file, bytes, main.end)
  if (!Array.isArray(keys.value))
    throw new TorchFileError('SY_TORCH_DAMAGED', { file, why: 'its list of storages is missing' })
  let at = keys.end
  for (const key of keys.value as unknown[]) {
    const storage = main.storages.get(String(key))
    if (storage === undefined)
      throw new TorchFileError('SY_TORCH_DAMAGED', { file, why: `storage ${String(key)} is unknown` })
    at = fillLegacyStorage(source, storage, at, littleEndian)
  }
  for (const storage of main.storages.values()) {
    if (storage.bytes === undefined) {
      throw new TorchFileError('SY_TORCH_DAMAGED', { file, why: `the data of storage ${storage.key} are missing` })
    }
  }
  return main.value
}

function fillLegacyStorage(source: ByteSource, storage: TorchStorage, at: number, littleEndian: boolean): number {
  const header = source.read(at, 8)
  const count = Number(new DataView(header.buffer, header.byteOffset, 8).getBigInt64(0, true))
  if (count * (storage.dtype === undefined ? 1 : DTYPE_BYTES[storage.dtype]) !== storage.byteLength) {
    throw new TorchFileError('SY_TORCH_DAMAGED', {
      file: source.name,
      why: `storage ${storage.key} has two different sizes`,
    })
  }
  storage.bytes = source.read(at + 8, storage.byteLength)
  storage.littleEndian = littleEndian
  return at + 8 + storage.byteLength
}

function limit(source: ByteSource, what: string, size: number, most: number): void {
  if (size > most) {
    throw new TorchFileError('SY_TORCH_TOO_LARGE', {
      file: source.name,
      what,
      size: `${size} bytes`,
      limit: `${most} bytes`,
    })
  }
}
