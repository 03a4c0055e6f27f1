// Writes `.pt` files that torch.load reads: the same zip members, in the same order and with the same padding, that
// PyTorch 2.11 writes (stored members, data aligned to 64 bytes, data descriptors, zip64 end record).

import { crc32 } from 'node:zlib'
import { writeAll, writeWholeFile } from '../whole-file.js'
import { reason } from './byte-source.js'
import { TorchFileError } from './errors.js'
import { pickleValue, type Saveable, tensorBytes } from './pickle-writer.js'

const ALIGNMENT = 64

interface Written {
  readonly name: Uint8Array
  readonly offset: number
  readonly size: number
  readonly crc: number
}

/**
 * The bytes of a `.pt` file that holds `value`.
 * @param stem first part of the members' names; torch.save uses the file's name without `.pt`
 */
export function torchFileBytes(value: Saveable, stem = 'archive'): Uint8Array {
  const { pickle, tensors } = pickleValue(value)
  const zip = new ZipWriter()
  const text = (s: string) => new TextEncoder().encode(s)
  zip.add(`${stem}/data.pkl`, pickle)
  zip.add(`${stem}/.format_version`, text('1'))
  zip.add(`${stem}/.storage_alignment`, text(String(ALIGNMENT)))
  zip.add(`${stem}/byteorder`, text('little'))
  const checksums: number[] = []
  tensors.forEach((tensor, i) => {
    checksums.push(zip.add(`${stem}/data/${i}`, tensorBytes(tensor)))
  })
  zip.add(`${stem}/version`, text('3\n'))
  // Forty digits that name the content: PyTorch puts a combined hash of the members here.
  const id = [...checksums, crc32(pickle), pickle.length].map(n => String(n).padStart(10, '0')).join('')
  zip.add(`${stem}/.data/serialization_id`, text(id.padStart(40, '0').slice(-40)))
  return zip.finish()
}

/** Writes `value` to `path`, whole or not at all. @throws TorchFileError SY_TORCH_UNREADABLE when the path cannot be written */
export function saveTorchFile(path: string, value: Saveable): void {
  const base = path.replaceAll('\\', '/').split('/').at(-1) ?? ''
  try {
    const bytes = torchFileBytes(value, base.replace(/\.[^.]*$/, '') || 'archive')
    writeWholeFile(path, descriptor => writeAll(descriptor, bytes))
  } catch (error) {
    throw new TorchFileError('SY_TORCH_UNREADABLE', { file: path, why: reason(error) })
  }
}

class ZipWriter {
  readonly #parts: Uint8Array[] = []
  readonly #members: Written[] = []
  #at = 0

  #push(bytes: Uint8Array): void {
    this.#parts.push(bytes)
    this.#at += bytes.length
  }

  /** Adds a stored member whose data begin at a multiple of 64 bytes; returns its CRC-32. */
  add(memberName: string, bytes: Uint8Array): number {
    const name = new TextEncoder().encode(memberName)
    const offset = this.#at
    // The extra field "FB" is padding: four bytes of header, then as many Zs as the alignment asks for.
    const fixed = offset + 30 + name.length + 4
    const pad = (ALIGNMENT - (fixed % ALIGNMENT)) % ALIGNMENT
    const header = new Uint8Array(30 + name.length + 4 + pad)
    const data = new DataView(header.buffer)
    data.setUint32(0, 0x04034b50, true)
    data.setUint16(6, FLAGS, true)
    data.setUint16(26, name.length, true)
    data.setUint16(28, 4 + pad, true)
    header.set(name, 30)
    header.set([0x46, 0x42, pad & 255, pad >> 8], 30 + name.length)
    header.fill(0x5a, 34 + name.length)
    this.#push(header)
    this.#push(bytes)
    const crc = crc32(bytes)
    const descriptor = new DataView(new ArrayBuffer(16))
    descriptor.setUint32(0, 0x08074b50, true)
    descriptor.setUint32(4, crc, true)
    descriptor.setUint32(8, bytes.length, true)
    descriptor.setUint32(12, bytes.length, true)
    this.#push(new Uint8Array(descriptor.buffer))
    this.#members.push({ name, offset, size: bytes.length, crc })
    if (this.#at > 0xffffffff) {
      throw new TorchFileError('SY_TORCH_TOO_LARGE', {
        file: memberName,
        what: 'the file to write',
        size: this.#at,
        limit: 0xffffffff,
      })
    }
    return crc
  }

  finish(): Uint8Array {
    const start = this.#at
    for (const member of this.#members) {
      const entry = new Uint8Array(46 + member.name.length)
      const data = new DataView(entry.buffer)
      data.setUint32(0, 0x02014b50, true)
      data.setUint16(8, FLAGS, true)
      data.setUint32(16, member.crc, true)
      data.setUint32(20, member.size, true)
      data.setUint32(24, member.size, true)
      data.setUint16(28, member.name.length, true)
      data.setUint32(42, member.offset, true)
      entry.set(member.name, 46)
      this.#push(entry)
    }
    this.#end(start, this.#at - start)
    const out = new Uint8Array(this.#at)
    let at = 0
    for (const part of this.#parts) {
      out.set(part, at)
      at += part.length
    }
    return out
  }

  #end(start: number, bytes: number): void {
    const count = this.#members.length
    const at64 = this.#at
    const end = new DataView(new ArrayBuffer(56 + 20 + 22))
    const u64 = (offset: number, value: number) => end.setBigUint64(offset, BigInt(value), true)
    end.setUint32(0, 0x06064b50, true)
    u64(4, 44)
    end.setUint16(12, 0x031e, true)
    end.setUint16(14, 45, true)
    u64(24, count)
    u64(32, count)
    u64(40, bytes)
    u64(48, start)
    end.setUint32(56, 0x07064b50, true)
    u64(64, at64)
    end.setUint32(72, 1, true)
    end.setUint32(76, 0x06054b50, true)
    // More than 65,534 members: the short record points to the zip64 one.
    end.setUint16(84, Math.min(count, 0xffff), true)
    end.setUint16(86, Math.min(count, 0xffff), true)
    end.setUint32(88, bytes, true)
    end.setUint32(92, start, true)
    this.#push(new Uint8Array(end.buffer))
  }
}

/** Bit 3: sizes follow the data; bit 11: names are UTF-8. */
const FLAGS = 0x0808
