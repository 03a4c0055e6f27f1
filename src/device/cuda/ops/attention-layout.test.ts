// How attention is cut, and that the arguments are what the kernels' header declares.
import { readFileSync } from 'node:fs'
import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { ATTENTION_PARAMETERS } from './attention-launch.js'
import {
  attentionFamily,
  decodeCut,
  latentSharedBytes,
  PARTIAL_BYTES,
  partBytes,
  prefillBlocks,
  prefillTileRows,
  shiftOf,
} from './attention-layout.js'

const header = readFileSync(new URL('../../../../kernels/cuda/attention_batch.cuh', import.meta.url), 'utf8')

describe('launch arguments of attention', () => {
  it('are the parameters of the kernels, in order and type', () => {
    const text = header.slice(header.indexOf('#define ATT_PARAMETERS') + 22, header.indexOf('#define ATT_ARGUMENTS'))
    const declared = text
      .replaceAll('\\\n', ' ')
      .split(',')
      .map(p => {
        const words = p.trim().split(/\s+/)
        const name = words.at(-1)!.replace('*', '')
        return [name, p.includes('*') ? 'u64' : words[0] === 'float' ? 'f32' : 'i32']
      })
    expect(Object.entries(ATTENTION_PARAMETERS)).toEqual(declared)
    expect(declared).toHaveLength(30)
  })
})

describe('families', () => {
  const grouped = { heads: 32, kvHeads: 4, qkWidth: 128, vWidth: 128, keyOffset: 0, valueOffset: 512 }
  const latent = { heads: 16, kvHeads: 1, qkWidth: 576, vWidth: 512, keyOffset: 0, valueOffset: 0 }
  it('are chosen by shape', () => {
    expect(attentionFamily(grouped)).toBe('grouped')
    expect(attentionFamily({ ...grouped, qkWidth: 64, vWidth: 64 })).toBe('grouped')
    expect(attentionFamily(latent)).toBe('latent')
    for (const odd of [
      { ...grouped, qkWidth: 96, vWidth: 96 },
      { ...grouped, vWidth: 64 },
      { ...grouped, heads: 30 },
      { ...grouped, heads: 129, kvHeads: 1 },
      { ...latent, valueOffset: 64 },
      { ...latent, kvHeads: 2 },
    ])
      expect(attentionFamily(odd)).toBeUndefined()
  })
})

describe('cuts of decode', () => {
  it('fill the GPU once where rows are few, and leave short contexts whole where they are many', () => {
    const cut = (rows: number) => decodeCut(rows, 4, 264, partBytes(16, 128), false)
    expect(cut(1)).toEqual({ items: 1, splits: 64, minTiles: 1 })
    expect(cut(8)).toEqual({ items: 8, splits: 8, minTiles: 1 })
    expect(cut(32)).toEqual({ items: 32, splits: 2, minTiles: 1 })
    expect(cut(128)).toEqual({ items: 128, splits: 4, minTiles: 16 })
  })

  it('keep partial results within their memory (property)', () => {
    fc.assert(
      fc.property(
        fc.integer({ min: 1, max: 40000 }),
        fc.integer({ min: 1, max: 64 }),
        fc.integer({ min: 1, max: 600 }),
        fc.constantFrom(partBytes(16, 64), partBytes(16, 128), partBytes(16, 512), partBytes(64, 512)),
        fc.boolean(),
        (rows, pieces, slots, bytes, mixed) => {
          const { items, splits, minTiles } = decodeCut(rows, pieces, slots, bytes, mixed)
          expect(splits).toBeGreaterThanOrEqual(1)
          expect(splits).toBeLessThanOrEqual(64)
          expect(minTiles).toBeGreaterThanOrEqual(1)
          expect(items).toBeLessThanOrEqual(rows)
          if (!mixed) expect(items).toBe(rows)
          if (splits > 1) expect(items * pieces * splits * bytes).toBeLessThanOrEqual(PARTIAL_BYTES)
        },
      ),
    )
  })
})

it('tiles of prompts fill the M side', () => {
  expect([1, 7, 8, 100, 128].map(g => prefillTileRows(128, g))).toEqual([128, 18, 16, 1, 1])
  expect(prefillBlocks(4096, 16, 4)).toBe((256 + 16) * 4)
})

it('blocks of latents fit: two of 16 heads and one of 64 an SM of Hopper, one of 64 an SM of an A100', () => {
  expect(2 * (latentSharedBytes(16, 32) + 2048)).toBeLessThanOrEqual(228 << 10)
  expect(latentSharedBytes(64, 64) + 1024).toBeLessThanOrEqual(227 << 10)
  expect(latentSharedBytes(64, 32) + 1024).toBeLessThanOrEqual(163 << 10)
})

it('powers of two are told from other page sizes', () => {
  expect([1, 2, 7, 16, 96, 1024].map(shiftOf)).toEqual([0, 1, -1, 4, -1, 10])
})
