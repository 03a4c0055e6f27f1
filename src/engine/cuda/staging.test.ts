// The pinned copy of a step's inputs: what the GPU's block holds after the pieces were brought over, as the kernel of
// kernels/cuda/inputs.cu does it, is what a rank on the CPU would have in its input buffers.
import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { HostMemoryLender, i32View } from '../../device/memory.js'
import type { ProgramLimits } from '../../models/index.js'
import { type Program, ProgramBuilder } from '../../program/index.js'
import { type BatchSlice, makeBatch, RequestState } from '../../scheduler/index.js'
import { BatchWriter } from '../batch-writer.js'
import { lendInputBlock } from '../rank-memory.js'
import { lendDeviceInputs, lendStepSlot, PADDING_ID, StagedInputs, VALID_ROWS } from './staging.js'

const limits: ProgramLimits = { tokens: 40, sequences: 8, contextLength: 64, pageSize: 4, kvSlots: 256 }
const PAGES = limits.contextLength / limits.pageSize

/** The inputs of a decoder and operations that read them. */
function program(readsKeys: boolean): Program {
  const b = new ProgramBuilder()
  const input = (name: string, rows: 'tokens' | 'logitRows' | number, columns = 1) =>
    b.buffer({ name, kind: 'input', dtype: 'i32', rows, columns })
  const [ids, keys, positions] = [input('ids', 'tokens'), input('request_keys', 'tokens'), input('positions', 'tokens')]
  const [rowSequence, slots] = [input('row_sequence', 'tokens'), input('slots', 'tokens')]
  const pageTable = input('page_table', limits.sequences, PAGES)
  const index = input('logit_index', 'logitRows')
  const params = input('sample_params', 'logitRows', 8)
  const x = b.arena('x', 4)
  b.emit('embed', { out: x, ids, table: 'embed' }, { label: '' })
  const kv = b.buffer({ name: 'kv', kind: 'kv', dtype: 'act', rows: limits.kvSlots, columns: 4 })
  b.emit('store_kv', { kv, x, slots }, { label: '' })
  const batch = { rowSequence, positions, pageTable, pageSize: limits.pageSize }
  const sizes = { heads: 1, kvHeads: 1, qkWidth: 4, vWidth: 4, keyOffset: 0, valueOffset: 0, scale: 1 }
  b.emit('attention', { out: x, q: x, kv, batch, ...sizes }, { label: '' })
  if (readsKeys) {
    const moe = b.arena('chosen', 1, 'tokens', 'i32')
    b.emit('copy', { out: moe, x: ids }, { label: '' })
    const args = { out: moe, ids: moe, requestKeys: keys, positions, table: 't', layer: 0 }
    b.emit('choose_replicas', args, { label: '' })
  }
  const logits = b.arena('logits', 16, 'logitRows', 'f32')
  b.emit('gather_rows', { out: logits, x, index }, { rows: 'logitRows', label: '' })
  const out = b.arena('sampled', 1, 'logitRows', 'i32')
  b.emit('sample', { out, logits, params, logprob: b.arena('logprob', 1, 'logitRows', 'f32') }, { label: '' })
  const rows = { tokens: limits.tokens, padded: 40, gathered: 40, slice: 40, received: 1 }
  return b.build('inputs', { ...rows, logitRows: limits.sequences, gatheredLogits: limits.sequences })
}

const state = (id: number, length: number, lastRow: number | null): RequestState => {
  const s = new RequestState(
    {
      id: `${id}`,
      inputIds: Int32Array.from({ length }, (_, i) => 100 * id + i),
      maxTokens: 4,
      temperature: 0.5 * id,
      topP: 1,
      topK: id,
      minP: 0,
      seedLow: 7,
      seedHigh: 9,
      endTokenIds: [],
      wantLogits: false,
      isHealthCheck: false,
      priority: 0,
    },
    id,
  )
  if (lastRow !== null) s.tokens[s.length++] = -1 - lastRow
  for (let page = 0; page * limits.pageSize < s.length; page++) s.pages.push((5 * id + 3 * page) % 64)
  return s
}

/** As the kernel stage_inputs. */
function bringOver(
  block: Int32Array,
  slot: ReturnType<typeof lendStepSlot>,
  count: number,
  drawn: Int32Array,
  at: number,
) {
  const [mirror, pieces] = [i32View(slot.mirror.span), i32View(slot.pieces)]
  for (let piece = 0; piece < count; piece++) {
    const [first, words] = [pieces[2 * piece]!, pieces[2 * piece + 1]!]
    const ids = first >= at && first < at + limits.tokens
    for (let word = first; word < first + words; word++) {
      const value = mirror[word]!
      block[word] = !ids || value >= 0 ? value : value === PADDING_ID ? -1 : drawn[-1 - value]!
    }
  }
}

const lengths = fc.array(fc.record({ length: fc.integer({ min: 1, max: 5 }), ahead: fc.boolean() }), {
  minLength: 1,
  maxLength: limits.sequences,
})

describe('staged inputs', () => {
  it.each([false, true])('bring over what a rank on the CPU writes (request keys read: %s)', readsKeys => {
    const p = program(readsKeys)
    fc.assert(
      fc.property(fc.array(lengths, { minLength: 1, maxLength: 4 }), steps => {
        const lender = new HostMemoryLender()
        const device = lendDeviceInputs(p, lender)
        const block = i32View(device.span).fill(123)
        const slot = lendStepSlot(p, lender)
        const staged = new StagedInputs(slot, p, limits)
        const host = lendInputBlock(p, lender)
        const writer = new BatchWriter(host.buffers, limits)
        const drawn = Int32Array.from({ length: limits.sequences }, (_, i) => 1000 + i)
        for (const step of steps) {
          const slices = step.map(({ length, ahead }, i): BatchSlice => {
            const s = state(i + 1, length, ahead ? i : null)
            const [from, count] = ahead ? [s.length - 1, 1] : [0, length]
            return { state: s, from, count, sample: true, wantLogits: false, extend: !ahead }
          })
          const batch = makeBatch(slices)
          bringOver(block, slot, staged.write(batch, batch.tokens), drawn, staged.idsFrom)
          writer.write(batch, drawn)
          const rows: Record<string, number> = { logit_index: batch.logitRows, sample_params: 8 * batch.logitRows }
          for (const name of ['ids', 'positions', 'row_sequence', 'slots', 'logit_index', 'sample_params']) {
            const used = rows[name] ?? batch.tokens
            const view = (from: typeof host) => [...i32View(from.buffers[name]!).subarray(0, used)]
            expect(view(device), name).toEqual(view(host))
          }
          if (readsKeys) {
            const keys = (from: typeof host) => [...i32View(from.buffers['request_keys']!).subarray(0, batch.tokens)]
            expect(keys(device)).toEqual(keys(host))
          }
          slices.forEach(({ state: s }, i) => {
            const pages = i32View(device.buffers['page_table']!).subarray(i * PAGES, i * PAGES + s.pages.length)
            expect([...pages]).toEqual(s.pages)
          })
          expect(i32View(device.buffers[VALID_ROWS]!)[0]).toBe(batch.tokens)
        }
      }),
    )
  })

  it('bring over the page of a drill instead of the first, and the right one again with the next batch', () => {
    const p = program(false)
    const lender = new HostMemoryLender()
    const device = lendDeviceInputs(p, lender)
    const slot = lendStepSlot(p, lender)
    const staged = new StagedInputs(slot, p, limits)
    const s = state(2, 3, null)
    const batch = makeBatch([{ state: s, from: 0, count: 3, sample: true, wantLogits: false, extend: true }])
    for (const page of [999, s.pages[0]!]) {
      const pieces = staged.write(batch, 3)
      if (page === 999) staged.spoilPage(page)
      bringOver(i32View(device.span), slot, pieces, Int32Array.of(0), staged.idsFrom)
      expect(i32View(device.buffers['page_table']!)[0]).toBe(page)
    }
  })

  it('make the rows of a larger graph harmless, whatever was there before', () => {
    const p = program(false)
    const lender = new HostMemoryLender()
    const device = lendDeviceInputs(p, lender)
    const block = i32View(device.span).fill(77)
    const slot = lendStepSlot(p, lender)
    i32View(slot.mirror.span).fill(55)
    const staged = new StagedInputs(slot, p, limits)
    const s = state(3, 2, 0)
    const batch = makeBatch([{ state: s, from: 2, count: 1, sample: true, wantLogits: false, extend: false }])
    bringOver(block, slot, staged.write(batch, 4), Int32Array.of(42), staged.idsFrom)
    const first = (name: string, count: number) => [...i32View(device.buffers[name]!).subarray(0, count)]
    expect(first('ids', 4)).toEqual([42, -1, -1, -1])
    expect(first('positions', 4)).toEqual([2, 0, 0, 0])
    expect(first('row_sequence', 4)).toEqual([0, 0, 0, 0])
    expect(first('slots', 4).slice(1)).toEqual([-1, -1, -1])
    expect(first('logit_index', 4)).toEqual([0, 1, 2, 3])
    expect(first('sample_params', 32).slice(8)).toEqual(new Array(24).fill(0))
    expect(first(VALID_ROWS, 1)).toEqual([1])
  })
})
