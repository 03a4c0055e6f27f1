// The formulas of edits by hand, and that a row is the same afterwards, bit for bit.
import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { type LogitEdits, makeBatch, type RankRequest, RequestState } from '../scheduler/index.js'
import { editRow, LogitEditor, type Undo } from './logit-edits.js'

const NONE: LogitEdits = {
  repetitionPenalty: 1,
  frequencyPenalty: 0,
  presencePenalty: 0,
  minTokens: 0,
  biasTokens: [],
  biasValues: [],
}

function edited(
  row: readonly number[],
  edits: Partial<LogitEdits>,
  prompt: number[],
  drawn: number[],
  ends: number[] = [],
) {
  const logits = Float32Array.from(row)
  const counts = new Map<number, number>()
  for (const token of drawn) counts.set(token, (counts.get(token) ?? 0) + 1)
  const undo: Undo[] = []
  editRow(logits, 0, { ...NONE, ...edits }, { prompt: new Set(prompt), drawn: counts }, drawn.length, ends, undo)
  return [...logits]
}

describe('edits of a row', () => {
  it('divide positive and multiply negative logits of every token seen, once each', () => {
    expect(edited([4, -4, 4, -4, 4], { repetitionPenalty: 2 }, [0, 1, 0], [1, 2, 2])).toEqual([2, -8, 2, -4, 4])
  })

  it('subtract frequency for each time and presence once, for drawn tokens only', () => {
    const row = edited([1, 1, 1, 1], { frequencyPenalty: 0.5, presencePenalty: 0.25 }, [0], [1, 1, 2])
    expect(row).toEqual([1, 1 - 1 - 0.25, 1 - 0.5 - 0.25, 1])
  })

  it('add bias after penalties', () => {
    const edits = { repetitionPenalty: 2, biasTokens: [0, 3], biasValues: [10, -100] }
    expect(edited([4, 1, 1, 1], edits, [0], [])).toEqual([12, 1, 1, -99])
  })

  it('rule out end tokens until enough is drawn', () => {
    expect(edited([1, 2, 3], { minTokens: 2 }, [0], [0], [1, 2])).toEqual([1, -Infinity, -Infinity])
    expect(edited([1, 2, 3], { minTokens: 2 }, [0], [0, 0], [1, 2])).toEqual([1, 2, 3])
  })
})

const VOCAB = 12

function state(id: string, prompt: number[], drawn: number[], edits?: LogitEdits): RequestState {
  const request: RankRequest = {
    id,
    inputIds: Int32Array.from(prompt),
    maxTokens: drawn.length + 4,
    temperature: 0,
    topP: 1,
    topK: 0,
    minP: 0,
    seedLow: 0,
    seedHigh: 0,
    endTokenIds: [3],
    wantLogits: false,
    isHealthCheck: false,
    priority: 0,
    ...(edits ? { edits } : {}),
  }
  const made = new RequestState(request, 0)
  for (const token of drawn) made.tokens[made.length++] = token
  return made
}

describe('the editor of a batch', () => {
  const token = fc.integer({ min: 0, max: VOCAB - 1 })
  const edits = fc.record({
    repetitionPenalty: fc.constantFrom(1, 1.3, 0.5),
    frequencyPenalty: fc.constantFrom(0, 0.7, -2),
    presencePenalty: fc.constantFrom(0, 1.1),
    minTokens: fc.integer({ min: 0, max: 4 }),
    biasTokens: fc.constantFrom([], [2, 5]),
    biasValues: fc.constantFrom([1.5, -100]),
  })
  const request = fc.record({
    prompt: fc.array(token, { minLength: 1, maxLength: 6 }),
    drawn: fc.array(token, { maxLength: 6 }),
    edits: fc.option(edits, { nil: undefined }),
  })

  it('touches only rows that ask for it, gives each the bits it gets alone, and restores all', () => {
    fc.assert(
      fc.property(
        fc.array(request, { minLength: 1, maxLength: 5 }),
        fc.infiniteStream(fc.float({ noNaN: true })),
        (requests, noise) => {
          const states = requests.map((r, i) => state(`${i}`, r.prompt, r.drawn, r.edits))
          const slices = states.map(s => ({
            state: s,
            from: s.length - 1,
            count: 1,
            sample: true,
            wantLogits: false,
            extend: false,
          }))
          const logits = Float32Array.from({ length: states.length * VOCAB }, () => noise.next().value)
          const before = logits.slice()
          const editor = new LogitEditor()
          editor.apply(makeBatch(slices), logits, VOCAB)
          states.forEach((s, i) => {
            const mine = logits.subarray(i * VOCAB, (i + 1) * VOCAB)
            const untouched = before.slice(i * VOCAB, (i + 1) * VOCAB)
            const alone = untouched.slice()
            new LogitEditor().apply(makeBatch([slices[i]!]), alone, VOCAB)
            expect([...mine]).toEqual([...alone])
            if (s.request.edits === undefined) expect([...mine]).toEqual([...untouched])
          })
          editor.restore(logits)
          expect([...logits]).toEqual([...before])
        },
      ),
    )
  })

  it('counts tokens as they come', () => {
    const editor = new LogitEditor()
    const s = state('a', [1], [], { ...NONE, frequencyPenalty: 1 })
    const row = () => {
      const logits = new Float32Array(VOCAB)
      const slice = { state: s, from: s.length - 1, count: 1, sample: true, wantLogits: false, extend: false }
      editor.apply(makeBatch([slice]), logits, VOCAB)
      const found = [...logits]
      editor.restore(logits)
      return found[5]
    }
    expect(row()).toBe(0)
    s.tokens[s.length++] = 5
    expect(row()).toBe(-1)
    s.tokens[s.length++] = 5
    expect([row(), row()]).toEqual([-2, -2])
  })
})
