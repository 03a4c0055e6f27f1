// Reads the central directory of a zip archive and its stored members: exactly what torch.save produces, nothing more.
// Invariant: no member is inflated, decrypted or read past its declared size, so a small file cannot ask for much memory.
// Source of the layout: PKWARE APPNOTE 6.3 (end record, zip64 end record and locator, central and local headers).

import { crc32 } from 'node:zlib'
import type { ByteSource } from './byte-source.js'
import { TorchFileError } from './errors.js'

export interface ZipMember {
  readonly name: string
  /** Bytes, as stored. */
  readonly size: number
  readonly crc32: number
  /** Where the member's local header begins. */
  readonly headerOffset: number
}

const END = 0x06054b50
const END64 = 0x06064b50
const END64_LOCATOR = 0x07064b50
const CENTRAL = 0x02014b50
const LOCAL = 0x04034b50
const MAX_MEMBERS = 1_000_000
const MAX_DIRECTORY_BYTES = 1 << 28

const view = (bytes: Uint8Array) => new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength)

function damaged(source: ByteSource, why: string): TorchFileError {
  return new TorchFileError('SY_TORCH_DAMAGED', { file: source.name, why })
}

function u64(data: DataView, offset: number, source: ByteSource): number {
  const value = data.getUint32(offset, true) + data.getUint32(offset + 4, true) * 2 ** 32
  if (!Number.isSafeInteger(value)) throw damaged(source, 'a 64-bit size in its directory is out of range')
  return value
}

/** Does it begin like a zip archive? */
export function looksLikeZip(source: ByteSource): boolean {
  return source.size >= 22 && view(source.read(0, 4)).getUint32(0, true) === LOCAL
}

/**
 * The members of a zip archive, by name, in directory order.
 * @throws TorchFileError SY_TORCH_DAMAGED, SY_TORCH_ZIP_MEMBER (compressed or encrypted members), SY_TORCH_TOO_LARGE
 */
export function readZipDirectory(source: ByteSource): Map<string, ZipMember> {
  const { entries, offset, bytes } = locateDirectory(source)
  if (entries > MAX_MEMBERS || bytes > MAX_DIRECTORY_BYTES) {
    throw new TorchFileError('SY_TORCH_TOO_LARGE', {
      file: source.name,
      what: 'the number of tensors in its directory',
      size: entries,
      limit: MAX_MEMBERS,
    })
  }
  const directory = source.read(offset, bytes)
  const data = view(directory)
  const members = new Map<string, ZipMember>()
  let at = 0
  for (let i = 0; i < entries; i++) {
    if (at + 46 > bytes || data.getUint32(at, true) !== CENTRAL)
      throw damaged(source, `directory entry ${i} is missing`)
    const nameLength = data.getUint16(at + 28, true)
    const extraLength = data.getUint16(at + 30, true)
    const commentLength = data.getUint16(at + 32, true)
    const next = at + 46 + nameLength + extraLength + commentLength
    if (next > bytes) throw damaged(source, `directory entry ${i} is cut off`)
    const name = new TextDecoder().decode(directory.subarray(at + 46, at + 46 + nameLength))
    const flags = data.getUint16(at + 8, true)
    const method = data.getUint16(at + 10, true)
    if ((flags & 0x2041) !== 0) {
      throw new TorchFileError('SY_TORCH_ZIP_MEMBER', { file: source.name, member: name, what: 'encrypted' })
    }
    if (method !== 0) {
      throw new TorchFileError('SY_TORCH_ZIP_MEMBER', {
        file: source.name,
        member: name,
        what: `compressed (method ${method})`,
      })
    }
    const sizes = zip64Sizes(source, data, at, nameLength, extraLength)
    if (sizes.stored !== sizes.size) throw damaged(source, `${name} has two different sizes`)
    if (members.has(name)) throw damaged(source, `it holds ${name} twice`)
    members.set(name, { name, size: sizes.size, crc32: data.getUint32(at + 16, true), headerOffset: sizes.offset })
    at = next
  }
  return members
}

/** The bytes of one member, checked against its CRC-32 unless `check` is false. */
export function readZipMember(source: ByteSource, member: ZipMember, check = true): Uint8Array {
  const header = view(source.read(member.headerOffset, 30))
  if (header.getUint32(0, true) !== LOCAL) throw damaged(source, `${member.name} is not where the directory says`)
  const start = member.headerOffset + 30 + header.getUint16(26, true) + header.getUint16(28, true)
  const bytes = source.read(start, member.size)
  if (check && crc32(bytes) !== member.crc32) throw damaged(source, `the checksum of ${member.name} does not fit`)
  return bytes
}

function locateDirectory(source: ByteSource): { entries: number; offset: number; bytes: number } {
  const tailLength = Math.min(source.size, 65_557)
  const tailStart = source.size - tailLength
  const tail = view(source.read(tailStart, tailLength))
  let end = tailLength - 22
  while (end >= 0 && tail.getUint32(end, true) !== END) end--
  if (end < 0) throw damaged(source, 'the end of its zip directory is missing (cut off?)')
  const short = {
    entries: tail.getUint16(end + 10, true),
    bytes: tail.getUint32(end + 12, true),
    offset: tail.getUint32(end + 16, true),
  }
  const locatorAt = tailStart + end - 20
  if (locatorAt < 0) return short
  const locator = view(source.read(locatorAt, 20))
  if (locator.getUint32(0, true) !== END64_LOCATOR) return short
  const record = view(source.read(u64(locator, 8, source), 56))
  if (record.getUint32(0, true) !== END64) throw damaged(source, 'its zip64 directory is missing')
  return { entries: u64(record, 32, source), bytes: u64(record, 40, source), offset: u64(record, 48, source) }
}

/** Sizes and offset of a central entry; fields of 0xffffffff are found, in order, in the zip64 extra field (id 1). */
function zip64Sizes(source: ByteSource, data: DataView, at: number, nameLength: number, extraLength: number) {
  let stored = data.getUint32(at + 20, true)
  let size = data.getUint32(at + 24, true)
  let offset = data.getUint32(at + 42, true)
  let extra = at + 46 + nameLength
  const extraEnd = extra + extraLength
  while (extra + 4 <= extraEnd) {
    const id = data.getUint16(extra, true)
    const length = data.getUint16(extra + 2, true)
    let field = extra + 4
    if (field + length > extraEnd) break
    if (id === 1) {
      const next = () => {
        if (field + 8 > extra + 4 + length) throw damaged(source, 'a zip64 field is cut off')
        field += 8
        return u64(data, field - 8, source)
      }
      if (size === 0xffffffff) size = next()
      if (stored === 0xffffffff) stored = next()
      if (offset === 0xffffffff) offset = next()
    }
    extra += 4 + length
  }
  return { stored, size, offset }
}
