// Shared memory of the kernels that count: it grows with the tokens a rank brings, and a block has only so much. What follows from the
// flags is refused at the start, not by the driver in the first step that is too large.
import { ExpertBufferError } from '../errors.js'
import { type ExpertBufferConfig, totalExperts } from '../expert-buffer-config.js'

/** What a block may have on the GPUs that these kernels are for (sm_90). */
const BLOCK_BYTES = 227 << 10
/** What the kernels have of their own, rounded up: 384 bytes of ep_notify, 1,408 of ep_slots. */
const OWN_BYTES = 2 << 10

/** Of ep_notify: a mask a token, the places of every 32 tokens at every member, and counts of both sides. */
export function notifySharedBytes(config: ExpertBufferConfig, tokens: number): number {
  const size = config.expertsOfMember.length
  const experts = totalExperts(config)
  const countStride = size + Math.max(...config.expertsOfMember)
  return 4 * (tokens + size * Math.ceil(tokens / 32) + experts + size * countStride) + experts
}

/** Of ep_slots: a word a token, and lists of what each member brings. */
export function slotsSharedBytes({ expertsOfMember, topK, lowLatency }: ExpertBufferConfig, tokens: number): number {
  const { slots } = lowLatency!
  return 4 * (tokens + expertsOfMember.length * (slots * Math.ceil(topK / 2) + Math.ceil(slots / 32)))
}

/** @throws ExpertBufferError SY_EP_BAD_CONFIG with the most that fits */
export function checkSharedMemory(config: ExpertBufferConfig): void {
  const { normal, lowLatency } = config
  if (normal)
    check(
      'tokens of a rank and step ((--chunked-prefill-size + --max-running-requests) / attention-TP)',
      normal.maxTokens,
      tokens => notifySharedBytes(config, tokens),
    )
  if (lowLatency)
    check('slots (--deepep-num-max-dispatch-tokens-per-rank)', lowLatency.slots, slots =>
      slotsSharedBytes({ ...config, lowLatency: { ...lowLatency, slots } }, slots),
    )
}

function check(what: string, value: number, bytesOf: (count: number) => number): void {
  const room = BLOCK_BYTES - OWN_BYTES
  if (bytesOf(value) <= room) return
  let most = value
  while (most > 0 && bytesOf(most) > room) most--
  const rule = `at most ${most}, since a block of the GPU that counts them has ${room} bytes of shared memory and would need ${bytesOf(value)}`
  throw new ExpertBufferError('SY_EP_BAD_CONFIG', { what, value, rule })
}
