// Which kernel takes a shape of attention, and how rows are cut, whatever the number of rows.
import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { type AnyShape, anyBlocks, anyKernel, anyParts } from './attention-any-layout.js'
import { PARTIAL_BYTES, partsRoom } from './attention-layout.js'

const HOPPER = { sharedBytesPerBlock: 227 << 10, sharedBytesPerSm: 228 << 10 }
const SMALL = { sharedBytesPerBlock: 99 << 10, sharedBytesPerSm: 100 << 10 }

const demo: AnyShape = {
  ...{ heads: 8, kvHeads: 1, qkWidth: 80, vWidth: 64, keyOffset: 0, valueOffset: 0 },
  ...{ type: 'bf16', access: 8, quads: true },
}

describe('kernels of attention of any widths', () => {
  it('are matrix instructions for bf16 up to 256 wide, where shared memory holds it, and lanes for all else', () => {
    const nameOf = (s: Partial<AnyShape>, memory = HOPPER) => anyKernel({ ...demo, ...s }, memory)?.name
    expect(nameOf({})).toBe('attention_any_mma')
    expect(nameOf({ qkWidth: 256, vWidth: 256, valueOffset: 256 })).toBe('attention_any_mma')
    expect(nameOf({ qkWidth: 256, vWidth: 256, valueOffset: 256 }, SMALL)).toBe('attention_any_lanes')
    expect(nameOf({ qkWidth: 257 })).toBe('attention_any_lanes')
    expect(nameOf({ type: 'f32', access: 4 })).toBe('attention_any_lanes')
    expect(nameOf({ qkWidth: 1025 })).toBeUndefined()
    expect(nameOf({ heads: 5, kvHeads: 2 })).toBeUndefined()
  })

  it('read a value that begins its key once', () => {
    const inside = (s: Partial<AnyShape>) => anyKernel({ ...demo, ...s }, HOPPER)!.defines['ANY_INSIDE']
    expect([inside({}), inside({ valueOffset: 8 }), inside({ kvHeads: 2 }), inside({ vWidth: 96 })]).toEqual([
      1, 0, 0, 0,
    ])
  })

  it('share the heads of a KV head evenly among blocks', () => {
    const of = (s: Partial<AnyShape>) => {
      const { heads, pieces } = anyKernel({ ...demo, ...s }, HOPPER)!
      return [heads, pieces]
    }
    expect(of({})).toEqual([8, 1])
    expect(of({ heads: 20 })).toEqual([10, 2])
    expect(of({ heads: 128 })).toEqual([16, 8])
    expect(of({ heads: 8, kvHeads: 8 })).toEqual([1, 8])
    expect(of({ type: 'f32', access: 4 })).toEqual([4, 2])
  })

  it('fit their memory, cover all heads and keep few numbers a lane (property)', () => {
    const width = fc.integer({ min: 1, max: 1024 })
    fc.assert(
      fc.property(
        ...([width, width, fc.integer({ min: 1, max: 140 }), fc.integer({ min: 1, max: 4 })] as const),
        ...([fc.constantFrom('bf16', 'f32'), fc.constantFrom(HOPPER, SMALL)] as const),
        (qkWidth, vWidth, groupHeads, kvHeads, type, memory) => {
          const valueOffset = kvHeads * qkWidth
          const shape = { ...demo, heads: groupHeads * kvHeads, kvHeads, qkWidth, vWidth, valueOffset, type } as const
          const { heads, pieces, sharedBytes, defines } = anyKernel(shape, memory)!
          expect(sharedBytes + 2048).toBeLessThanOrEqual(memory.sharedBytesPerBlock)
          expect((pieces / kvHeads) * heads).toBeGreaterThanOrEqual(groupHeads)
          expect((pieces / kvHeads - 1) * heads).toBeLessThan(groupHeads)
          const lanes = defines['ANY_LANES']
          if (lanes !== undefined) {
            const chunk = type === 'bf16' ? 8 : 4
            const each = (w: number) => Math.ceil(Math.ceil(w / chunk) / Number(lanes)) * chunk
            expect(heads * (each(qkWidth) + each(vWidth))).toBeLessThanOrEqual(96)
          }
        },
      ),
    )
  })
})

describe('parts of a row', () => {
  it('follow from what it sees: 256 positions each, and 64 of them at most', () => {
    expect([1, 256, 257, 480, 2048, 16384, 16385, 32768, 131072].map(anyParts)).toEqual([1, 1, 2, 2, 8, 64, 52, 64, 64])
  })

  it('are shared by blocks until the GPU is full, and are not where they would not fit their memory', () => {
    expect([1, 32, 128, 600].map(pairs => anyBlocks(pairs, 528, 8, 1000))).toEqual([8, 8, 4, 1])
    expect(anyBlocks(600, 528, 64, 64)).toBe(4)
    expect(anyBlocks(1, 528, 64, 63)).toBe(1)
    fc.assert(
      fc.property(fc.integer({ min: 1, max: 1 << 20 }), fc.integer({ min: 80, max: 20000 }), (pairs, bytesAPart) => {
        const parts = 64
        const blocks = anyBlocks(pairs, 528, parts, partsRoom(pairs, bytesAPart))
        expect(blocks).toBeGreaterThanOrEqual(1)
        if (blocks > 1) expect(pairs * parts * bytesAPart).toBeLessThanOrEqual(PARTIAL_BYTES)
      }),
    )
  })
})
