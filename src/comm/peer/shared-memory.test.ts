// Which steps the counting kernels have shared memory for: refused at the edge, with the number that works.
import { describe, expect, it } from 'vitest'
import { ExpertBufferError } from '../errors.js'
import type { ExpertBufferConfig } from '../expert-buffer-config.js'
import { checkPeerConfig } from './peer-expert-buffer.js'
import { notifySharedBytes, slotsSharedBytes } from './shared-memory.js'

const LIMIT = 232_448

const config = (members: number, maxTokens: number, slots: number, topK = 8): ExpertBufferConfig => ({
  hidden: 2048,
  topK,
  expertsOfMember: Array(members).fill(128 / members),
  normal: { maxTokens, dispatchWire: 'bf16', combineWire: 'bf16', transit: 'direct' },
  lowLatency: { slots, dispatchWire: 'bf16', combineWire: 'bf16', reduce: 'sender' },
})

/** The most that a refusal names. */
function most(refused: ExpertBufferConfig): number {
  try {
    checkPeerConfig(refused)
  } catch (error) {
    if (!(error instanceof ExpertBufferError) || error.code !== 'SY_EP_BAD_CONFIG') throw error
    return Number(/at most (\d+)/.exec(error.message)![1])
  }
  throw new Error('was not refused')
}

describe('shared memory of the kernels that count', () => {
  it.each([2, 8, 32])('bounds the tokens of a step among %d members', members => {
    const tokens = most(config(members, 1 << 20, 128))
    checkPeerConfig(config(members, tokens, 128))
    expect(most(config(members, tokens + 1, 128))).toBe(tokens)
    expect(notifySharedBytes(config(members, tokens, 128), tokens) + 384).toBeLessThanOrEqual(LIMIT)
    // Nothing is refused that would have fitted, but for what is left to the kernel and a word of 32 tokens at each member.
    expect(notifySharedBytes(config(members, tokens, 128), tokens)).toBeGreaterThan(LIMIT - 2048 - 4 * (members + 1))
  })

  it('holds a chunk of 8,192 with 256 requests many times over, and 256 slots at 32 members', () => {
    expect(most(config(8, 1 << 20, 256))).toBeGreaterThan(4 * (8192 + 256))
    checkPeerConfig(config(32, 8192 + 256, 256))
  })

  it('bounds the slots, which may be as many as a step has tokens', () => {
    const slots = most(config(8, 100, 65_536))
    checkPeerConfig(config(8, 100, slots))
    expect(slotsSharedBytes(config(8, 100, slots), slots) + 1408).toBeLessThanOrEqual(LIMIT)
    expect(most(config(8, 100, slots + 1))).toBe(slots)
  })
})
