// Expert loads and placements: recorder dumps, JSON, NPY; what is refused, and mutated files.
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { afterAll, describe, expect, it } from 'vitest'
import { SwitchyardError } from '../../config/errors.js'
import { CounterRandom } from '../../runtime/random.js'
import { npyBytes } from '../npy/index.js'
import { loadTorchFile, type TorchTensor, torchFileBytes } from '../torch/index.js'
import { readExpertLoad, readPlacement, writeExpertLoad, writePlacement } from './index.js'

const dumps = fileURLToPath(new URL('../../../test/fixtures/recorder-dumps/', import.meta.url))
const at = (name: string) => join(dumps, `expert_distribution_recorder_${name}.pt`)
const dir = mkdtempSync(join(tmpdir(), 'expert-load-'))
afterAll(() => rmSync(dir, { recursive: true }))

let files = 0
function file(content: string | Uint8Array, name = `f${files++}`): string {
  const path = join(dir, name)
  writeFileSync(path, content)
  return path
}
const json = (value: unknown) => file(JSON.stringify(value))
const sum = (values: Iterable<number>) => [...values].reduce((a, b) => a + b, 0)

function refusal(act: () => unknown): { code: string; message: string; remedy: string } {
  try {
    act()
  } catch (error) {
    if (error instanceof SwitchyardError) return error
    throw error
  }
  throw new Error('it was accepted')
}

describe('recorder dumps', () => {
  it('reads a stat dump', () => {
    const load = readExpertLoad([at('1764420000.0')])
    expect([load.format, load.mode, load.steps, load.layers, load.logical]).toEqual(['torch-zip', 'stat', 300, 6, 32])
    expect(load.total).toBe(12_288_000)
    expect(sum(load.counts)).toBe(12_288_000)
    expect(load.placement).toBeNull()
    expect(load.notes).toEqual(['no token was routed in layer 0 (dense, or not recorded)'])
  })

  it('reads the pre-zip format', () => {
    const load = readExpertLoad([join(dumps, 'legacy_format.pt')])
    expect([load.format, load.steps, load.total]).toEqual(['torch-legacy', 3, 122_880])
  })

  for (const [mode, name] of [
    ['per_pass', '1764420100.25'],
    ['per_token', '1764420200.5'],
  ] as const) {
    it(`sums ${mode} ranks by pass, as logical counts`, () => {
      const ranks = [at(`${name}_0`), at(`${name}_1`)]
      const load = readExpertLoad(ranks)
      expect([load.mode, load.layers, load.logical, load.placement?.physical]).toEqual([mode, 6, 32, 36])
      // The same sums by hand, from the tensors.
      const byPass = new Map<number, Float64Array>()
      for (const rank of ranks) {
        const dump = loadTorchFile(rank).value as Map<string, unknown>
        const map = (dump.get('last_physical_to_logical_map') as TorchTensor).toFloat64()
        for (const record of dump.get('records') as Map<string, unknown>[]) {
          const count = (record.get('global_physical_count') as TorchTensor).toFloat64()
          const pass = record.get('forward_pass_id') as number
          const row = byPass.get(pass) ?? new Float64Array(6 * 32)
          count.forEach((n, i) => {
            row[Math.floor(i / 36) * 32 + map[i]!] = row[Math.floor(i / 36) * 32 + map[i]!]! + n
          })
          byPass.set(pass, row)
        }
      }
      const passes = [...byPass.keys()].sort((a, b) => a - b)
      expect(load.passIds).toEqual(passes)
      expect(load.steps).toBe(passes.length)
      expect([...load.counts]).toEqual(passes.flatMap(pass => [...byPass.get(pass)!]))
      expect(load.total).toBeGreaterThan(0)
    })
  }

  it('bins token ids when the counts are not there, and refuses counts that disagree with them', () => {
    const map = { dtype: 'int64' as const, shape: [1, 4], values: [0, 1, 2, 0] }
    const ids = { dtype: 'int32' as const, shape: [1, 3, 2], values: [3, 1, 0, -1, 3, 3] }
    const dump = (extra: object) =>
      file(
        torchFileBytes({
          records: [{ forward_pass_id: 7, rank: 0, gatherer_key: 'primary', topk_ids_of_layer: ids, ...extra }],
          last_physical_to_logical_map: map,
        }),
      )
    expect([...readExpertLoad([dump({})]).counts]).toEqual([4, 1, 0])
    const wrong = dump({ global_physical_count: { dtype: 'int32', shape: [1, 4], values: [1, 1, 0, 2] } })
    expect(refusal(() => readExpertLoad([wrong])).code).toBe('SY_LOAD_RECORD')
  })

  it('reads records whose tensors lived on a GPU', () => {
    const path = fileURLToPath(new URL('../../../test/fixtures/torch/recorder_cuda.pt', import.meta.url))
    expect(readExpertLoad([path])).toMatchObject({
      mode: 'per_pass',
      steps: 2,
      layers: 6,
      logical: 4,
      passIds: [3, 5],
      total: 15_300,
    })
  })

  it('names ranks that are missing: by files that lie beside, and by gaps in their numbers', () => {
    const of = (...names: string[]) => readExpertLoad(names.map(at)).notes.filter(note => note.includes('not whole'))
    expect(of('1764420100.25_0', '1764420100.25_1')).toEqual([])
    expect(of('1764420100.25_0')).toEqual([
      'the dump is not whole: rank 1 of 0 to 1 is missing, so the load is that of the other ranks only; beside the given files lies expert_distribution_recorder_1764420100.25_1.pt',
    ])
    expect(of('1764420200.5_1')).toEqual([expect.stringContaining('rank 0 of 0 to 1 is missing')])
    const record = (rank: number) => ({
      forward_pass_id: 0,
      rank,
      gatherer_key: 'primary',
      global_physical_count: { dtype: 'int32' as const, shape: [1, 2], values: [1, 2] },
    })
    const map = { dtype: 'int64' as const, shape: [1, 2], values: [0, 1] }
    const dump = (name: string, ...ranks: number[]) =>
      file(torchFileBytes({ records: ranks.map(record), last_physical_to_logical_map: map }), name)
    const [a, b] = [dump('gap_0.pt', 0), dump('gap_3.pt', 3)]
    expect(readExpertLoad([a, b]).notes[0]).toMatch(/ranks 1, 2 of 0 to 3 are missing, .* other ranks only$/)
    // All ranks in one file, under any name.
    expect(readExpertLoad([dump('whole.pt', 0, 1, 2)]).notes).toEqual([])
    expect(readExpertLoad([dump('odd.pt', 0, 2 ** 50)]).notes).toEqual([])
  })

  it('keeps files apart that are no ranks of one dump', () => {
    const code = (...paths: string[]) => refusal(() => readExpertLoad(paths)).message
    expect(code(at('1764420100.25_0'), at('1764420100.25_0'))).toContain('the same file')
    const copy = file(readFileSync(at('1764420100.25_0')))
    expect(code(at('1764420100.25_0'), copy)).toContain('both hold pass 0 of the same rank')
    expect(code(at('1764420100.25_0'), at('1764420200.5_1'))).toContain('it is per_token, the other per_pass')
    expect(code(at('1764420100.25_0'), at('1764420000.0'))).toContain('does not belong with')
    expect(code(at('1764420000.0'), join(dumps, 'legacy_format.pt'))).toContain('[3, 6, 32], the other [300, 6, 32]')
  })
})

describe('plain files', () => {
  it('reads JSON and NPY with or without steps', () => {
    const two = [
      [1, 2, 3],
      [4, 5, 6],
    ]
    expect(readExpertLoad([json({ logical_count: [two, two], other: 'ignored' })]).total).toBe(42)
    expect(readExpertLoad([json(two)])).toMatchObject({ mode: 'array', steps: 1, layers: 2, logical: 3, total: 21 })
    const npy = file(npyBytes([2, 3], Int32Array.from([1, 2, 3, 4, 5, 6])))
    expect(readExpertLoad([npy])).toMatchObject({ format: 'npy', steps: 1, layers: 2, logical: 3, total: 21 })
    expect([...readExpertLoad([json(two), npy]).counts]).toEqual([2, 4, 6, 8, 10, 12])
  })

  const bad: [string, unknown, string, RegExp][] = [
    ['negative', [[1, -2]], 'SY_LOAD_VALUE', /step 0, layer 0, expert 1 .* is -2/],
    ['null', [[1, null]], 'SY_LOAD_VALUE', /the array\[0\]\[1\] .*null \(NaN\?\)/],
    ['text', [[1, 'two']], 'SY_LOAD_VALUE', /"two"/],
    [
      'ragged layers',
      [
        [[1, 2]],
        [
          [1, 2],
          [3, 4],
        ],
      ],
      'SY_LOAD_RAGGED',
      /entry \[1\] has 2 entries.* has 1/,
    ],
    ['ragged experts', { logical_count: [[1, 2], [3]] }, 'SY_LOAD_RAGGED', /entry \[1\] has 1 entries/],
    ['mixed depth', [[1, 2], 3], 'SY_LOAD_RAGGED', /entry \[1\] has no entries/],
    ['empty', [], 'SY_LOAD_EMPTY', /is empty/],
    ['empty rows', [[], []], 'SY_LOAD_EMPTY', /is empty/],
    ['all zero', [[0, 0]], 'SY_LOAD_EMPTY', /every count/],
    ['one dimension', [1, 2, 3], 'SY_LOAD_SHAPE', /shape \[3\]; expected \[steps\]/],
    ['four dimensions', [[[[1]]]], 'SY_LOAD_SHAPE', /at most three/],
    ['overflow', [[2 ** 53, 2 ** 53]], 'SY_LOAD_OVERFLOW', /2\^53/],
    ['a placement', { physical_to_logical_map: [[0, 1]] }, 'SY_LOAD_KIND', /a placement/],
    ['another dict', { a: 1, b: 2 }, 'SY_LOAD_KIND', /a dict with a, b/],
    ['a number', 7, 'SY_LOAD_KIND', /a number/],
  ]
  for (const [what, value, code, message] of bad) {
    it(`refuses ${what}`, () => {
      const error = refusal(() => readExpertLoad([json(value)]))
      expect(error.code).toBe(code)
      expect(error.message).toMatch(message)
      expect(error.remedy.length).toBeGreaterThan(20)
    })
  }

  it('refuses NaN and broken JSON, missing files and NaN in tensors', () => {
    expect(refusal(() => readExpertLoad([file('[[1, NaN]]')])).message).toContain('it holds NaN')
    expect(refusal(() => readExpertLoad([file('[[1, 2')])).code).toBe('SY_LOAD_JSON')
    expect(refusal(() => readExpertLoad([join(dir, 'absent.pt')])).message).toContain('there is no such file')
    expect(refusal(() => readExpertLoad([file(npyBytes([1, 2], Float64Array.from([1, Number.NaN])))])).code).toBe(
      'SY_LOAD_VALUE',
    )
    expect(refusal(() => readExpertLoad([file('['.repeat(50_000) + ']'.repeat(50_000))])).code).toBe('SY_LOAD_SHAPE')
  })
})

describe('placements', () => {
  it('reads .pt, JSON, inline JSON and the map of a dump', () => {
    const placement = readPlacement(join(dumps, 'placement.pt'))
    expect([placement.layers, placement.physical, placement.logical]).toEqual([6, 40, 32])
    expect(sum(placement.physicalToLogical)).toBe(3144)
    expect(readPlacement('{"physical_to_logical_map": [[1, 0, 1]]}')).toMatchObject({
      layers: 1,
      physical: 3,
      logical: 2,
    })
    expect(readPlacement(at('1764420100.25_0'))).toMatchObject({ layers: 6, physical: 36, logical: 32 })
  })

  it('writes JSON with exactly one key, and .pt, that read back equal', () => {
    const placement = readPlacement(join(dumps, 'placement.pt'))
    for (const name of ['p.json', 'p.pt']) {
      writePlacement(join(dir, name), placement)
      expect(readPlacement(join(dir, name))).toEqual(placement)
    }
    const written = JSON.parse(readFileSync(join(dir, 'p.json'), 'utf8')) as Record<string, number[][]>
    expect(Object.keys(written)).toEqual(['physical_to_logical_map'])
    expect(written['physical_to_logical_map']!.map(row => row.length)).toEqual([40, 40, 40, 40, 40, 40])
  })

  const bad: [string, unknown, RegExp][] = [
    ['a missing expert', [[0, 2, 2]], /layer 0 has no slot for logical expert 1/],
    ['a negative id', [[0, -1]], /layer 0, slot 1 holds -1/],
    ['a fraction', [[0, 0.5]], /holds 0.5/],
    ['an id beyond the slots', [[0, 9]], /names logical expert 9/],
    ['one dimension', [0, 1], /its shape is \[2\]/],
  ]
  for (const [what, map, message] of bad) {
    it(`refuses ${what}`, () => {
      expect(refusal(() => readPlacement(JSON.stringify({ physical_to_logical_map: map }))).message).toMatch(message)
    })
  }

  it('refuses a load in its place', () => {
    expect(refusal(() => readPlacement(at('1764420000.0'))).message).toContain('an expert load (logical_count)')
  })
})

describe('writing loads', () => {
  it('.pt, .npy and JSON read back equal', () => {
    const load = readExpertLoad([at('1764420100.25_0'), at('1764420100.25_1')])
    for (const name of ['load.pt', 'load.npy', 'load.json']) {
      writeExpertLoad(join(dir, name), load)
      const back = readExpertLoad([join(dir, name)])
      expect([back.steps, back.layers, back.logical]).toEqual([load.steps, load.layers, load.logical])
      expect(back.counts).toEqual(load.counts)
    }
    const tensor = (loadTorchFile(join(dir, 'load.pt')).value as Map<string, unknown>).get('logical_count')
    expect((tensor as TorchTensor).dtype).toBe('int32')
  })
})

describe('mutated files', () => {
  it('500 of each kind are read or refused by an error of ours', () => {
    const originals = [
      readFileSync(at('1764420100.25_0')),
      Buffer.from(npyBytes([2, 2, 3], Float64Array.from([1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12]))),
      Buffer.from(
        JSON.stringify({
          logical_count: [
            [
              [1, 2, 3],
              [4, 5, 6],
            ],
          ],
        }),
      ),
    ]
    const random = new CounterRandom(5, 4)
    const path = join(dir, 'mutant')
    let refused = 0
    for (const original of originals) {
      for (let n = 0; n < 500; n++) {
        let bytes = Buffer.from(original)
        for (let k = 0; k <= n % 4; k++) bytes[random.below(Math.min(bytes.length, 1100))] = random.below(256)
        if (n % 5 === 0) bytes = bytes.subarray(0, random.below(bytes.length))
        writeFileSync(path, bytes)
        for (const read of [() => readExpertLoad([path]), () => readPlacement(path)]) {
          try {
            read()
          } catch (error) {
            if (!(error instanceof SwitchyardError)) throw error
            refused++
          }
        }
      }
    }
    expect(refused).toBeGreaterThan(1000)
  })
})
