// Mutations for fuzzing, a pure function of the seed: of bytes (flips, cuts, repeats) and of JSON values (fields dropped,
// renamed, doubled, replaced by values that tend to break readers).
import type { CounterRandom } from '../../src/runtime/random.js'

export type JsonValue = null | boolean | number | string | JsonValue[] | { [key: string]: JsonValue }

const NASTY: readonly JsonValue[] = [
  null,
  true,
  false,
  0,
  -1,
  0.5,
  1e12,
  2 ** 53,
  1e308,
  -0.0001,
  '',
  'x',
  '../x',
  '\u0000',
  '\uD800',
  '𝔘'.repeat(40),
  [],
  [[]],
  {},
  { a: { b: [null] } },
  [1, 'a', null],
]

const pick = <T>(random: CounterRandom, list: readonly T[]): T => list[random.below(list.length)]!

/** One to four small damages to a copy of `bytes`. */
export function mutateBytes(bytes: Uint8Array, random: CounterRandom): Uint8Array {
  let out = Uint8Array.from(bytes)
  for (let i = 1 + random.below(4); i > 0 && out.length > 0; i--) {
    const at = random.below(out.length)
    const length = 1 + random.below(Math.min(64, out.length - at))
    switch (random.below(6)) {
      case 0:
        out[at] = random.below(256)
        break
      case 1:
        out[at] = out[at]! ^ (1 << random.below(8))
        break
      case 2:
        out = out.slice(0, at)
        break
      case 3:
        out = Uint8Array.from([...out.subarray(0, at), ...out.subarray(at + length)])
        break
      case 4:
        out = Uint8Array.from([...out.subarray(0, at + length), ...out.subarray(at)])
        break
      default: {
        // The length prefix and the digits of offsets are where it hurts.
        const digit = out.findIndex((b, j) => j >= at && b >= 0x30 && b <= 0x39)
        out[digit < 0 ? random.below(Math.min(8, out.length)) : digit] = 0x30 + random.below(10)
      }
    }
  }
  return out
}

/** One to three damages somewhere inside `value`; the original is left alone. */
export function mutateJson(value: JsonValue, random: CounterRandom): JsonValue {
  let out = structuredClone(value)
  for (let i = 1 + random.below(3); i > 0; i--) out = damage(out, random)
  return out
}

function damage(root: JsonValue, random: CounterRandom): JsonValue {
  let parent: JsonValue[] | { [key: string]: JsonValue } | null = null
  let key = ''
  let here = root
  while (
    typeof here === 'object' &&
    here !== null &&
    Object.keys(here).length > 0 &&
    (parent === null || random.below(3) > 0)
  ) {
    parent = here
    key = pick(random, Object.keys(here))
    here = (here as { [key: string]: JsonValue })[key]!
  }
  if (parent === null) return structuredClone(pick(random, NASTY))
  const holder = parent as { [key: string]: JsonValue }
  switch (random.below(5)) {
    case 0:
      if (Array.isArray(parent)) parent.splice(Number(key), 1)
      else delete holder[key]
      break
    case 1:
      if (typeof here === 'number') holder[key] = pick(random, [here + 1, -here, here * 1e6, here / 3, String(here)])
      else if (typeof here === 'string')
        holder[key] = pick(random, [`${here}x`, here.slice(1), [here], here.toUpperCase()])
      else holder[key] = [here]
      break
    case 2:
      if (Array.isArray(parent)) parent.push(structuredClone(here))
      else
        holder[pick(random, [`${key}_`, '__proto__', 'constructor', 'toString', key.slice(1)])] = structuredClone(here)
      break
    default:
      holder[key] = structuredClone(pick(random, NASTY))
  }
  return root
}
