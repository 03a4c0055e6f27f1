// The byte reader given to pickleparser: a gate in front of the interpreter. It sees where each instruction begins and
// lets through only those that build plain values, lists, dicts, tuples and tensors.
// Invariant: an instruction that could build objects, call constructors or set attributes (BUILD, INST, OBJ, NEWOBJ,
// EXT…) never reaches the interpreter; lengths are checked against the bytes that are there.

import type { IReader } from 'pickleparser/dist/types/reader.js'
import { TorchFileError } from './errors.js'

/** Instructions that tensors, numbers, strings and containers of them need (pickle protocols 2 to 5). */
const ALLOWED = new Set<number>([
  ...codes('(.0N)]}'), // MARK STOP POP NONE EMPTY_TUPLE EMPTY_LIST EMPTY_DICT
  ...codes('KMJGXU'), // BININT1 BININT2 BININT BINFLOAT BINUNICODE SHORT_BINSTRING
  ...codes('TBC'), // BINSTRING BINBYTES SHORT_BINBYTES
  ...codes('aetsul'), // APPEND APPENDS TUPLE SETITEM SETITEMS LIST
  ...codes('qrhj'), // BINPUT LONG_BINPUT BINGET LONG_BINGET
  ...codes('cRQ'), // GLOBAL REDUCE BINPERSID: answered by our whitelist only
  0x80, // PROTO
  0x85,
  0x86,
  0x87, // TUPLE1..3
  0x88,
  0x89, // NEWTRUE NEWFALSE
  0x8a, // LONG1, eight bytes at most
  0x8c,
  0x8d, // SHORT_BINUNICODE BINUNICODE8
  0x8f,
  0x90,
  0x91, // EMPTY_SET ADDITEMS FROZENSET
  0x93, // STACK_GLOBAL
  0x94,
  0x95, // MEMOIZE FRAME
])

/** Names of refused instructions, for the message. */
const NAMES = new Map<number, string>([
  [0x62, 'BUILD'],
  [0x64, 'DICT'],
  [0x69, 'INST'],
  [0x6f, 'OBJ'],
  [0x50, 'PERSID'],
  [0x81, 'NEWOBJ'],
  [0x82, 'EXT1'],
  [0x83, 'EXT2'],
  [0x84, 'EXT4'],
  [0x8b, 'LONG4'],
  [0x92, 'NEWOBJ_EX'],
  [0x97, 'NEXT_BUFFER'],
])

const LONG1 = 0x8a

function codes(text: string): number[] {
  return [...text].map(c => c.charCodeAt(0))
}

export class GatedPickleReader implements IReader {
  readonly #file: string
  readonly #bytes: Uint8Array
  readonly #data: DataView
  #at: number
  #atInstruction = false

  /** Starts at byte `start`, so that several pickles of one file can be read one after the other. */
  constructor(file: string, bytes: Uint8Array, start = 0) {
    this.#file = file
    this.#bytes = bytes
    this.#data = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength)
    this.#at = start
  }

  get position(): number {
    return this.#at
  }

  /** Called by the interpreter before every instruction, and only then. */
  hasNext(): boolean {
    this.#atInstruction = true
    return this.#at < this.#bytes.length
  }

  byte(): number {
    const value = this.#data.getUint8(this.#advance(1))
    if (this.#atInstruction) {
      this.#atInstruction = false
      this.#check(value)
    }
    return value
  }

  #check(opcode: number): void {
    if (!ALLOWED.has(opcode)) {
      const known = NAMES.get(opcode) ?? `0x${opcode.toString(16)}`
      throw new TorchFileError('SY_TORCH_OPCODE', { file: this.#file, opcode: known, offset: this.#at - 1 })
    }
    if (opcode !== LONG1) return
    // The interpreter reads long integers as unsigned and of eight bytes at most; anything else would come out wrong.
    const length = this.#at < this.#bytes.length ? this.#bytes[this.#at]! : 0
    const top = this.#bytes[this.#at + length] ?? 0
    if (length > 7 || (length > 0 && top > 127)) {
      throw new TorchFileError('SY_TORCH_INT64_RANGE', {
        file: this.#file,
        value: `of ${length} bytes at ${this.#at - 1}`,
      })
    }
  }

  bytes(length: number): Uint8Array {
    const start = this.#advance(length)
    return this.#bytes.subarray(start, start + length)
  }

  uint16(): number {
    return this.#data.getUint16(this.#advance(2), true)
  }

  int32(): number {
    return this.#data.getInt32(this.#advance(4), true)
  }

  uint32(): number {
    return this.#data.getUint32(this.#advance(4), true)
  }

  uint64(): number {
    const start = this.#advance(8)
    return this.#data.getUint32(start, true) + this.#data.getUint32(start + 4, true) * 2 ** 32
  }

  float64(): number {
    return this.#data.getFloat64(this.#advance(8), false)
  }

  skip(length: number): void {
    this.#advance(length)
  }

  string(size: number, encoding: 'ascii' | 'utf-8'): string {
    return new TextDecoder(encoding).decode(this.bytes(size))
  }

  line(): string {
    const end = this.#bytes.indexOf(0x0a, this.#at)
    if (end < 0 || end - this.#at > 4096) this.#damaged()
    const text = this.string(end - this.#at, 'ascii')
    this.#at++
    return text
  }

  #advance(length: number): number {
    const start = this.#at
    if (!(length >= 0 && start + length <= this.#bytes.length)) this.#damaged()
    this.#at = start + length
    return start
  }

  #damaged(): never {
    throw new TorchFileError('SY_TORCH_DAMAGED', {
      file: this.#file,
      why: `its description ends early at byte ${this.#at}`,
    })
  }
}
