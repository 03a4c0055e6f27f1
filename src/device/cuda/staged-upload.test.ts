// Uploads through pinned buffers, with a queue that copies as late as it may: bytes that a buffer got too early would be seen.
import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { type CopyQueue, StagedUploads } from './staged-upload.js'

/** The memory of a device whose copies happen only when somebody waits for them. */
class LateQueue implements CopyQueue {
  readonly memory: Uint8Array
  readonly #buffers: readonly SharedArrayBuffer[]
  readonly #queued: { buffer: number; from: number; bytes: number; to: number }[] = []
  readonly #marks = new Map<number, number>()
  #ran = 0
  waits = 0

  constructor(bytes: number, buffers: readonly SharedArrayBuffer[]) {
    this.memory = new Uint8Array(bytes)
    this.#buffers = buffers
  }

  copy(buffer: number, from: number, bytes: number, to: number): void {
    expect(from + bytes).toBeLessThanOrEqual(this.#buffers[buffer]!.byteLength)
    expect(bytes).toBeGreaterThan(0)
    this.#queued.push({ buffer, from, bytes, to })
  }

  mark(buffer: number): void {
    this.#marks.set(buffer, this.#queued.length)
  }

  wait(buffer: number): void {
    this.waits++
    this.runTo(this.#marks.get(buffer)!)
  }

  runTo(count = this.#queued.length): void {
    for (; this.#ran < count; this.#ran++) {
      const { buffer, from, bytes, to } = this.#queued[this.#ran]!
      this.memory.set(new Uint8Array(this.#buffers[buffer]!, from, bytes), to)
    }
  }
}

describe('uploads through pinned buffers', () => {
  it('bring every byte to its place, though sources change right after and copies come late', () => {
    const sizes = fc.array(fc.integer({ min: 0, max: 1000 }), { minLength: 1, maxLength: 30 })
    fc.assert(
      fc.property(sizes, fc.integer({ min: 1, max: 400 }), fc.integer({ min: 2, max: 3 }), (lengths, size, count) => {
        const total = lengths.reduce((a, b) => a + b, 0)
        const buffers = Array.from({ length: count }, () => new SharedArrayBuffer(size))
        const queue = new LateQueue(total, buffers)
        const uploads = new StagedUploads(buffers, queue)
        const expected = Uint8Array.from({ length: total }, (_, i) => (7 * i + (i >> 8)) & 255)
        let at = 0
        for (const length of lengths) {
          // Behind something else, as a tensor lies in its file.
          const source = new Uint8Array(length + 3)
          source.set(expected.subarray(at, at + length), 3)
          uploads.upload(at, source.subarray(3))
          source.fill(0xee)
          at += length
        }
        queue.runTo()
        expect(queue.memory).toEqual(expected)
      }),
    )
  })

  it('wait for nothing while there is room, and then for the older buffer only', () => {
    const buffers = [new SharedArrayBuffer(256), new SharedArrayBuffer(256)]
    const queue = new LateQueue(1024, buffers)
    const uploads = new StagedUploads(buffers, queue)
    uploads.upload(0, new Uint8Array(512))
    expect(queue.waits).toBe(0)
    uploads.upload(512, new Uint8Array(1))
    expect(queue.waits).toBe(1)
    uploads.upload(513, new Uint8Array(255))
    expect(queue.waits).toBe(2)
  })

  it('take views of wider elements by their bytes', () => {
    const buffers = [new SharedArrayBuffer(64), new SharedArrayBuffer(64)]
    const queue = new LateQueue(12, buffers)
    new StagedUploads(buffers, queue).upload(0, Float32Array.of(9, 1, 2, 3).subarray(1))
    queue.runTo()
    expect([...new Float32Array(queue.memory.buffer)]).toEqual([1, 2, 3])
  })
})
