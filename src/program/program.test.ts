// Arenas, the builder's rules and exchange buffers of programs.
import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { bufferBytes, type Program, ProgramBuilder, planArena, printProgram } from './index.js'

const bounds = { tokens: 7, padded: 7, gathered: 14, slice: 4, received: 7, logitRows: 3, gatheredLogits: 6 }

/** A random chain of copies and adds over named buffers, as layers make them. */
const randomProgram = fc
  .array(fc.record({ a: fc.nat(), b: fc.nat(), width: fc.integer({ min: 1, max: 40 }) }), {
    minLength: 1,
    maxLength: 30,
  })
  .map((steps): Program => {
    const b = new ProgramBuilder()
    const written = [b.buffer({ name: 'in', kind: 'input', dtype: 'f32', rows: 'tokens', columns: 40 })]
    steps.forEach(({ a, b: other, width }, i) => {
      const out = b.arena(`t${i}`, width)
      const pick = (n: number) => {
        const ref = written[n % written.length]!
        return { ...ref, width: Math.min(width, ref.width) }
      }
      b.emit('add', { out, a: pick(a), b: pick(other) }, { label: 'add' })
      written.push(out)
    })
    return b.build('random', bounds)
  })

describe('arena planning', () => {
  it('never lets two live buffers share memory, and never needs more than no sharing', () => {
    fc.assert(
      fc.property(randomProgram, program => {
        const plan = planArena(program)
        const placed = program.buffers.filter(b => plan.offsets[b.name] !== undefined)
        for (const x of placed) {
          const [xOffset, xBytes, xLife] = [plan.offsets[x.name]!, bufferBytes(program, x), plan.lifetimes[x.name]!]
          expect(xOffset % 64).toBe(0)
          expect(xOffset + xBytes).toBeLessThanOrEqual(plan.bytes)
          for (const y of placed) {
            const yLife = plan.lifetimes[y.name]!
            const together = x !== y && xLife[0] <= yLife[1] && yLife[0] <= xLife[1]
            if (!together) continue
            const yOffset = plan.offsets[y.name]!
            expect(xOffset + xBytes <= yOffset || yOffset + bufferBytes(program, y) <= xOffset).toBe(true)
          }
        }
        expect(plan.bytes).toBeLessThanOrEqual(plan.unsharedBytes)
      }),
    )
  })

  it('reuses the memory of buffers that are dead', () => {
    const b = new ProgramBuilder()
    let x = b.buffer({ name: 'in', kind: 'input', dtype: 'f32', rows: 'tokens', columns: 16 })
    for (let i = 0; i < 10; i++) {
      const out = b.arena(`t${i}`, 16)
      b.emit('copy', { out, x }, { label: 'copy' })
      x = out
    }
    const plan = planArena(b.build('chain', bounds))
    expect(plan.bytes).toBe(plan.unsharedBytes / 5)
  })
})

describe('ProgramBuilder', () => {
  it('refuses a read before a write, a reach outside a buffer, and one name with two shapes', () => {
    const b = new ProgramBuilder()
    const x = b.arena('x', 4)
    const y = b.arena('y', 4)
    expect(() => b.emit('copy', { out: y, x }, { label: 'c' })).toThrow(/before anything wrote it/)
    const input = b.buffer({ name: 'in', kind: 'input', dtype: 'f32', rows: 'tokens', columns: 4 })
    expect(() => b.emit('copy', { out: y, x: { ...input, width: 5 } }, { label: 'c' })).toThrow(/outside buffer in/)
    expect(() => b.arena('x', 5)).toThrow(/different shapes/)
  })

  it('prints equal layers once', () => {
    const b = new ProgramBuilder()
    let x = b.buffer({ name: 'in', kind: 'input', dtype: 'f32', rows: 'tokens', columns: 16 })
    for (let layer = 0; layer < 3; layer++) {
      b.layer(layer)
      const out = b.arena('h', 16)
      b.emit('copy', { out, x: layer === 0 ? x : out.buffer === x.buffer ? out : x }, { label: 'carry' })
      x = out
    }
    const text = printProgram(b.build('layers', bounds)).join('\n')
    expect(text).toContain('copy')
    expect(text).toMatch(/layer 2: as the one before/)
  })
})

describe('exchange buffers', () => {
  const begin = () => {
    const b = new ProgramBuilder()
    const x = b.buffer({ name: 'in', kind: 'input', dtype: 'f32', rows: 'tokens', columns: 4 })
    const place = b.exchange('leaving', 4, 'attnDp')
    const out = b.arena('all', 4, 'gathered')
    const gather = () =>
      b.emit('all_gather', { out, x: place, group: 'attnDp', counts: 'dp' }, { rows: 'padded', label: 'g' })
    return { b, x, place, out, gather }
  }

  it('are written, read and gathered, again and again, and take no place in the arena', () => {
    const { b, x, place, gather } = begin()
    for (let i = 0; i < 2; i++) {
      b.emit('copy', { out: place, x }, { label: 'write' })
      b.emit('add', { out: b.arena('y', 4), a: place, b: x }, { label: 'read' })
      b.emit('all_reduce', { x, group: 'attnTp' }, { label: 'in another group' })
      gather()
    }
    const plan = planArena(b.build('exchanging', bounds))
    expect(Object.keys(plan.offsets).sort()).toEqual(['all', 'y'])
  })

  it('refuse whatever would find the memory of another turn', () => {
    const one = begin()
    one.b.emit('copy', { out: one.place, x: one.x }, { label: 'write' })
    expect(() => one.b.emit('all_reduce', { x: one.x, group: 'attnDp' }, { label: 'between' })).toThrow(/comes between/)
    expect(() => one.b.build('open', bounds)).toThrow(/never gathered/)
    one.gather()
    const read = () => one.b.emit('copy', { out: one.b.arena('y', 4), x: one.place }, { label: 'late' })
    expect(read).toThrow(/before anything wrote it/)
    expect(one.gather).toThrow(/before anything wrote it/)

    const two = begin()
    two.b.emit('copy', { out: two.place, x: two.x }, { label: 'write' })
    const other = two.b.exchange('second', 4, 'attnDp')
    expect(() => two.b.emit('copy', { out: other, x: two.x }, { label: 'both' })).toThrow(/while leaving waits/)
    const elsewhere = two.b.exchange('third', 4, 'tp')
    expect(() => two.b.emit('copy', { out: elsewhere, x: two.place }, { label: 'across' })).toThrow(/two exchanges/)
    const part = { out: two.out, x: { ...two.place, width: 2 }, group: 'attnDp', counts: 'dp' } as const
    expect(() => two.b.emit('all_gather', part, { label: 'part' })).toThrow(/a part of/)
    const wrong = { out: two.out, x: two.place, group: 'tp', counts: 'tp' } as const
    expect(() => two.b.emit('all_gather', wrong, { label: 'wrong group' })).toThrow(/not the group's next/)
    const sum = { out: two.place, residual: two.x, x: two.x, counts: null, weight: 'w', eps: 1 } as const
    const across = () => two.b.emit('reduce_norm', { ...sum, group: 'attnDp' }, { label: 'same group' })
    expect(across).toThrow(/across a collective/)
  })
})
