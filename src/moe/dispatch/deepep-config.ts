// --deepep-config → sizes of transit rings. Keys are DeepEP's (source: SGLang DeepEPConfig, deep_ep.Config): two sections
// with sizes of each direction. Here one set of rings serves both directions, so where the two differ it gets the smaller
// chunk and the larger ring. Whatever is not understood is refused by name; nothing is ignored silently.
import { readFileSync } from 'node:fs'
import type { RingConfig } from '../../comm/index.js'
import { closest } from '../../config/suggest.js'
import { DispatchError } from './errors.js'

const SECTIONS = ['normal_dispatch', 'normal_combine'] as const
const CHUNK = 'num_max_nvl_chunked_send_tokens'
const RING = 'num_max_nvl_chunked_recv_tokens'
/** Sizes between nodes: checked, and of no effect inside one. */
const RDMA = ['num_max_rdma_chunked_send_tokens', 'num_max_rdma_chunked_recv_tokens'] as const
const KEYS = ['num_sms', CHUNK, RING, ...RDMA] as const
type Key = (typeof KEYS)[number]
type Section = Readonly<Partial<Record<Key, number>>>

/** DeepEP's own defaults for chunk and ring; two "SMs" are one channel. */
const DEFAULTS: Readonly<Record<'num_sms' | typeof CHUNK | typeof RING, number>> = {
  num_sms: 2,
  [CHUNK]: 6,
  [RING]: 256,
}
const MAX_SMS = 128
const EXAMPLE = `{"normal_dispatch": {"num_sms": 4, "${CHUNK}": 6, "${RING}": 256}}`

const refuse = (what: string, remedy = `Write for example ${EXAMPLE}, or name a JSON file that holds this.`) =>
  new DispatchError('SY_DISPATCH_BAD_CONFIG', { what, remedy })

/**
 * @param text JSON, or the path of a JSON file
 * @throws DispatchError SY_DISPATCH_BAD_CONFIG
 */
export function readDeepepConfig(text: string): RingConfig {
  const inline = text.trimStart().startsWith('{')
  let value: unknown
  try {
    value = JSON.parse(inline ? text : readFileSync(text, 'utf8'))
  } catch (cause) {
    const why = cause instanceof Error ? cause.message : String(cause)
    throw refuse(inline ? `the JSON cannot be read: ${why}` : `${text} cannot be read as a JSON file: ${why}`)
  }
  const given = objectOf(value, 'the whole')
  if (Object.keys(given).length === 0) throw refuse('it names neither normal_dispatch nor normal_combine')
  for (const name of Object.keys(given)) known(name, SECTIONS, 'section')
  const sections = SECTIONS.filter(name => given[name] !== undefined).map(name => sectionOf(given[name], name))
  const sms = sections.map(s => s.num_sms ?? DEFAULTS.num_sms)
  if (sms.some(n => n !== sms[0]))
    throw refuse(
      `num_sms is ${sms.join(' in normal_dispatch and ')} in normal_combine`,
      'Give both sections the same num_sms: the two directions share their channels.',
    )
  return {
    channels: sms[0]! / 2,
    chunkTokens: Math.min(...sections.map(s => s[CHUNK] ?? DEFAULTS[CHUNK])),
    ringTokens: Math.max(...sections.map(s => s[RING] ?? DEFAULTS[RING])),
  }
}

function sectionOf(value: unknown, name: string): Section {
  const given = objectOf(value, name)
  for (const key of Object.keys(given)) known(key, KEYS, `key of ${name}`)
  for (const [key, n] of Object.entries(given))
    if (!Number.isSafeInteger(n) || (n as number) < 1)
      throw refuse(`${name}.${key} is ${JSON.stringify(n)}, but must be a whole number from 1`)
  const section = given as Section
  const { num_sms: sms = DEFAULTS.num_sms, [CHUNK]: chunk = DEFAULTS[CHUNK], [RING]: ring = DEFAULTS[RING] } = section
  if (sms % 2 !== 0 || sms > MAX_SMS)
    throw refuse(`${name}.num_sms is ${sms}, but must be even and at most ${MAX_SMS}: two are one channel`)
  if (2 * chunk > ring)
    throw refuse(
      `${name} has chunks of ${chunk} tokens (${CHUNK}) and rings of ${ring} (${RING})`,
      `A ring holds at least two chunks: set ${RING} to ${2 * chunk} or more, or ${CHUNK} to ${Math.max(1, Math.floor(ring / 2))} or less.`,
    )
  return section
}

function objectOf(value: unknown, name: string): Readonly<Record<string, unknown>> {
  if (typeof value === 'object' && value !== null && !Array.isArray(value)) return value as Record<string, unknown>
  throw refuse(`${name} must be a JSON object`)
}

function known(name: string, names: readonly string[], what: string): void {
  if (names.includes(name)) return
  const near = closest(name, names)
  const instead = near === null ? `There are: ${names.join(', ')}.` : `Did you mean ${near}?`
  throw refuse(`there is no ${what} ${JSON.stringify(name)}`, instead)
}
