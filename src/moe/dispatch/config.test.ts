// Flags of the all-to-all: what they become, and what is refused before anything is lent, with numbers that work.
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { checkSlots, type DispatchFlags, dispatchNotes, expertBufferConfig } from './config.js'
import { readDeepepConfig } from './deepep-config.js'
import { DispatchError } from './errors.js'

const FLAGS: DispatchFlags = {
  moeA2aBackend: 'deepep',
  deepepMode: 'auto',
  deepepDispatcherOutputDtype: 'auto',
  deepepNumMaxDispatchTokensPerRank: 128,
  deepepConfig: null,
}

function refusal(act: () => unknown): DispatchError {
  try {
    act()
  } catch (error) {
    if (error instanceof DispatchError) return error
    throw error
  }
  throw new Error('was not refused')
}

describe('--deepep-config', () => {
  const section = (o: object) => JSON.stringify({ normal_dispatch: o })

  it('becomes rings, with defaults for what is left out', () => {
    const all = { num_sms: 8, num_max_nvl_chunked_send_tokens: 3, num_max_nvl_chunked_recv_tokens: 12 }
    expect(readDeepepConfig(section(all))).toEqual({ channels: 4, chunkTokens: 3, ringTokens: 12 })
    expect(readDeepepConfig(section({}))).toEqual({ channels: 1, chunkTokens: 6, ringTokens: 256 })
    const both = { normal_dispatch: all, normal_combine: { num_sms: 8, num_max_nvl_chunked_recv_tokens: 30 } }
    expect(readDeepepConfig(JSON.stringify(both))).toEqual({ channels: 4, chunkTokens: 3, ringTokens: 30 })
  })

  it('may lie in a file', () => {
    const folder = mkdtempSync(join(tmpdir(), 'deepep-'))
    try {
      const file = join(folder, 'tuned.json')
      writeFileSync(file, section({ num_sms: 4 }))
      expect(readDeepepConfig(file).channels).toBe(2)
      writeFileSync(file, '{')
      expect(refusal(() => readDeepepConfig(file)).message).toContain(file)
      expect(refusal(() => readDeepepConfig(join(folder, 'none.json'))).message).toContain('none.json')
    } finally {
      rmSync(folder, { recursive: true })
    }
  })

  it.each<[string, string, RegExp]>([
    ['broken JSON', '{"normal_dispatch"', /JSON cannot be read/],
    ['nothing', '{}', /neither normal_dispatch nor normal_combine/],
    ['an unknown section', '{"normal_dispach": {}}', /no section "normal_dispach".*Did you mean normal_dispatch\?/],
    ['an unknown key', section({ num_sm: 4 }), /no key of normal_dispatch "num_sm".*Did you mean num_sms\?/],
    ['a section that is no object', '{"normal_dispatch": 4}', /normal_dispatch must be a JSON object/],
    ['text for a number', section({ num_sms: '4' }), /normal_dispatch\.num_sms is "4".*whole number/],
    ['zero', section({ num_max_nvl_chunked_send_tokens: 0 }), /num_max_nvl_chunked_send_tokens is 0/],
    ['an odd number of SMs', section({ num_sms: 5 }), /num_sms is 5.*even/],
    ['too many SMs', section({ num_sms: 130 }), /num_sms is 130.*at most 128/],
    [
      'a ring below two chunks',
      section({ num_max_nvl_chunked_recv_tokens: 9 }),
      /chunks of 6 .*to 12 or more.*to 4 or less/,
    ],
    [
      'two numbers of SMs',
      '{"normal_dispatch": {"num_sms": 4}, "normal_combine": {"num_sms": 8}}',
      /num_sms is 4 .*8 in/,
    ],
    [
      'a bad size between nodes',
      section({ num_max_rdma_chunked_send_tokens: 1.5 }),
      /rdma_chunked_send_tokens is 1\.5/,
    ],
  ])('%s is refused by name', (_, text, pattern) => {
    const { code, message, remedy } = refusal(() => readDeepepConfig(text))
    expect(code).toBe('SY_DISPATCH_BAD_CONFIG')
    expect(`${message} ${remedy}`).toMatch(pattern)
  })
})

describe('slots', () => {
  const low: DispatchFlags = { ...FLAGS, deepepMode: 'low_latency' }
  const whole = fc.integer({ min: 1, max: 300 })

  it('must hold whatever a step may bring; each remedy that is named works', () => {
    fc.assert(
      fc.property(whole, whole, whole, fc.integer({ min: 1, max: 4 }), (slots, chunk, running, attnTp) => {
        const flags = { ...low, deepepNumMaxDispatchTokensPerRank: slots }
        const step = { chunkedPrefillSize: chunk, maxRunningRequests: running, attnTp }
        if (Math.ceil((chunk + running) / attnTp) <= slots) return checkSlots(flags, step)
        const { remedy, code } = refusal(() => checkSlots(flags, step))
        expect(code).toBe('SY_DISPATCH_TOO_FEW_SLOTS')
        const number = (name: string) => Number(new RegExp(`--${name} (\\d+)`).exec(remedy)?.[1])
        checkSlots(
          { ...flags, deepepNumMaxDispatchTokensPerRank: number('deepep-num-max-dispatch-tokens-per-rank') },
          step,
        )
        const chunked = number('chunked-prefill-size')
        const requests = number('max-running-requests')
        if (chunked > 0) checkSlots(flags, { ...step, chunkedPrefillSize: chunked })
        else if (slots * attnTp > 1)
          checkSlots(flags, { ...step, chunkedPrefillSize: requests, maxRunningRequests: requests })
      }),
    )
  })

  it('may be fewer when another mode takes the rest, and are no more than a step can bring', () => {
    const step = { chunkedPrefillSize: 512, maxRunningRequests: 32, attnTp: 1 }
    for (const mode of ['auto', 'normal'] as const) checkSlots({ ...FLAGS, deepepMode: mode }, step)
    checkSlots({ ...low, moeA2aBackend: 'none' }, step)
    const sizes = { hidden: 8, topK: 2, expertsOfRank: [4, 4], nodeOfRank: [0, 0], maxTokens: 20 }
    expect(expertBufferConfig(FLAGS, sizes).lowLatency?.slots).toBe(20)
    expect(expertBufferConfig({ ...FLAGS, deepepNumMaxDispatchTokensPerRank: 7 }, sizes).lowLatency?.slots).toBe(7)
  })
})

describe('wires', () => {
  const sizes = { hidden: 8, topK: 2, expertsOfRank: [4, 4], nodeOfRank: [0, 0], maxTokens: 20 }

  it.each([
    ['auto', 'f32', 'f32'],
    ['f32', 'f32', 'f32'],
    ['bf16', 'bf16', 'bf16'],
    ['fp8', 'fp8', 'bf16'],
    ['int8', 'int8', 'bf16'],
  ] as const)('%s sends %s and brings back %s, in both modes', (deepepDispatcherOutputDtype, there, back) => {
    const { normal, lowLatency } = expertBufferConfig({ ...FLAGS, deepepDispatcherOutputDtype }, sizes)
    for (const mode of [normal, lowLatency]) expect(mode).toMatchObject({ dispatchWire: there, combineWire: back })
  })
})

describe('notes', () => {
  it('name flags without effect, and nothing else', () => {
    expect(dispatchNotes(FLAGS, true)).toEqual([])
    const none: DispatchFlags = { ...FLAGS, moeA2aBackend: 'none' }
    expect(dispatchNotes(none, true)).toEqual([])
    const given = { ...none, deepepMode: 'normal', deepepDispatcherOutputDtype: 'fp8', deepepConfig: '{}' } as const
    expect(dispatchNotes(given, true).map(note => note.split(' ')[0])).toEqual([
      '--deepep-mode',
      '--deepep-dispatcher-output-dtype',
      '--deepep-config',
    ])
    expect(dispatchNotes(FLAGS, false)[0]).toMatch(/no routed experts/)
    expect(dispatchNotes({ ...FLAGS, deepepMode: 'low_latency', deepepConfig: '{}' }, true)[0]).toMatch(/has no effect/)
  })
})
