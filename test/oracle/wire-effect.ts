// What rounding on the wire may do to logits. Two answers, both from the oracle:
// - `Rounding` rounds exactly what travels, so an engine must agree to its arithmetic's precision (`explain`);
// - `wireBound` sums over everything that travels |d logit / d element| × half a step of that element: the first-order bound.
// Tokens go to their experts in one wire and partial sums come back in another.

import type { Place, Travel } from './feed-forward.js'
import type { Oracle } from './index.js'
import type { Rows } from './tensors.js'
import { type RoundedElement, roundRow, type Wire } from './wires.js'

/** Results come back in bfloat16 whatever tokens were sent in. */
const BACK: Wire = 'bf16'

type Experts = ReadonlyMap<string, readonly number[]>
const placeKey = ({ layer, token }: Place): string => `${layer}.${token}`

/** A run in which all that travels is rounded; elements named in `turned` to the other neighbour. */
export class Rounding implements Travel {
  readonly ranks: number
  readonly #wire: Wire
  readonly #turned: ReadonlySet<string>
  /** Elements and how near they were to being rounded otherwise, relative to the largest of their row. */
  readonly near: { readonly key: string; readonly distance: number }[] = []
  readonly experts = new Map<string, readonly number[]>()

  constructor(ranks: number, wire: Wire, turned: ReadonlySet<string> = new Set()) {
    this.ranks = ranks
    this.#wire = wire
    this.#turned = turned
  }

  send(x: Float64Array, at: Place): Float64Array {
    return this.#round(x, this.#wire, `there ${placeKey(at)}`)
  }

  sendBack(partial: Float64Array, at: Place, rank: number): Float64Array {
    return this.#round(partial, BACK, `back ${placeKey(at)} ${rank}`)
  }

  choose(own: readonly number[], at: Place): readonly number[] {
    this.experts.set(placeKey(at), own)
    return own
  }

  #round(row: Float64Array, wire: Wire, name: string): Float64Array {
    const largest = row.reduce((m, v) => Math.max(m, Math.abs(v)), 0)
    return Float64Array.from(roundRow(row, wire), ({ value, other, distance }, i) => {
      const key = `${name} ${i}`
      if (distance < NEAR * largest) this.near.push({ key, distance: distance / largest })
      return this.#turned.has(key) ? other : value
    })
  }
}

/** An f32 engine's rows differ from the oracle's by less than this much of their largest element. */
const NEAR = 1e-5
/** Elements that may have been rounded otherwise in one explanation, and candidates looked at for each. */
const [DEPTH, BREADTH] = [2, 6]

/**
 * The elements that must have been rounded to the other neighbour for `logits` to come out; all of them lie as near to the
 * turning point as f32 arithmetic is precise. null: there is no such explanation.
 */
export function explain(
  oracle: Oracle,
  ids: readonly number[],
  ranks: number,
  wire: Wire,
  agrees: (logits: Float64Array) => boolean,
): readonly string[] | null {
  const seek = (turned: readonly string[]): readonly string[] | null => {
    const rounding = new Rounding(ranks, wire, new Set(turned))
    if (agrees(oracle.logits(ids, rounding))) return turned
    if (turned.length === DEPTH) return null
    const candidates = rounding.near.filter(({ key }) => !turned.includes(key))
    candidates.sort((a, b) => a.distance - b.distance)
    for (const { key } of candidates.slice(0, BREADTH)) {
      const found = seek([...turned, key])
      if (found) return found
    }
    return null
  }
  return seek([])
}

/** Travels unchanged, with given experts; remembers what travelled. */
class Recorder implements Travel {
  readonly ranks: number
  readonly #experts: Experts
  readonly sent = new Map<string, Float64Array>()
  readonly back = new Map<string, Float64Array[]>()

  constructor(ranks: number, experts: Experts) {
    this.ranks = ranks
    this.#experts = experts
  }

  send(x: Float64Array, at: Place): Float64Array {
    this.sent.set(placeKey(at), x)
    return x
  }

  sendBack(partial: Float64Array, at: Place): Float64Array {
    this.back.set(placeKey(at), [...(this.back.get(placeKey(at)) ?? []), partial])
    return partial
  }

  choose(_own: readonly number[], at: Place): readonly number[] {
    return this.#experts.get(placeKey(at))!
  }
}

const EPSILON = 1e-6

/** What one token's rows in one layer do to logits. */
interface Influence {
  readonly token: number
  /** d logits / d element of what comes back, and of the residual. */
  readonly tail: Rows
  /** d (experts' sum) / d element of the row sent. */
  readonly inner: Rows
  readonly sent: Float64Array
  readonly back: readonly Float64Array[]
}

/** A sequence with given experts, and how its logits react to everything that travels. Serves every wire. */
export interface Sensitivity {
  /** Without rounding. */
  readonly logits: Float64Array
  readonly vocab: number
  readonly influences: readonly Influence[]
}

/** Derivatives are forward differences in double precision; experts are given, so that none changes on the way. */
export function sensitivityOf(oracle: Oracle, ids: readonly number[], ranks: number, experts: Experts): Sensitivity {
  const recorder = new Recorder(ranks, experts)
  const residuals: Rows[] = [oracle.embed(ids)]
  for (let l = 0; l < oracle.layers.length; l++) residuals.push(oracle.step(l, residuals[l]!, recorder))
  const logits = oracle.head(residuals.at(-1)!)
  const influences: Influence[] = []
  for (const [layer, { mixture }] of oracle.layers.entries()) {
    if (!mixture) continue
    for (let token = 0; token < ids.length; token++) {
      const key = placeKey({ layer, token })
      const [sent, back] = [recorder.sent.get(key)!, recorder.back.get(key)!]
      const { experts: chosen, weights } = mixture.route(sent, { layer, token }, recorder)
      const sum = (row: Float64Array) => {
        const rows = chosen.map(e => mixture.experts[e]!(row))
        return Float64Array.from(row, (_, i) => rows.reduce((s, r, k) => s + weights[k]! * r[i]!, 0))
      }
      const tail = differences(residuals[layer + 1]![token]!, logits.subarray(token * oracle.vocab), row => {
        // Earlier rows do not hear of later ones.
        let rows: Rows = residuals[layer + 1]!.map((r, t) => (t === token ? row : r))
        for (let l = layer + 1; l < oracle.layers.length; l++)
          rows = oracle
            .step(l, rows, new Recorder(ranks, experts), token)
            .map((r, t) => (t < token ? residuals[l + 1]![t]! : r))
        return oracle.head(rows.slice(token))
      })
      influences.push({ token, tail, inner: differences(sent, sum(sent), sum), sent, back })
    }
  }
  return { logits, vocab: oracle.vocab, influences }
}

/** The first-order bound on what rounding does to each logit. */
export function wireBound({ logits, vocab, influences }: Sensitivity, wire: Wire): Float64Array {
  const bound = new Float64Array(logits.length)
  for (const { token, tail, inner, sent, back } of influences) {
    const there = roundRow(sent, wire)
    const returning = back.map(partial => roundRow(partial, BACK))
    addBound(bound.subarray(token * vocab), tail, inner, there, returning)
  }
  return bound
}

/** d f / d at[i], one row for each i. */
function differences(at: Float64Array, value: Float64Array, f: (row: Float64Array) => Float64Array): Rows {
  return Array.from(at, (_, i) => {
    const row = at.slice()
    row[i] = row[i]! + EPSILON
    return f(row).map((v, o) => (v - value[o]!) / EPSILON)
  })
}

function addBound(
  bound: Float64Array,
  tail: Rows,
  inner: Rows,
  there: readonly RoundedElement[],
  back: readonly (readonly RoundedElement[])[],
): void {
  for (let o = 0; o < bound.length; o++) {
    let sum = 0
    for (let i = 0; i < tail.length; i++) {
      const slope = Math.abs(tail[i]![o]!)
      for (const row of back) sum += slope * row[i]!.halfStep
    }
    for (let j = 0; j < there.length; j++) {
      const row = inner[j]!
      let slope = 0
      for (let i = 0; i < tail.length; i++) slope += tail[i]![o]! * row[i]!
      sum += Math.abs(slope) * there[j]!.halfStep
    }
    bound[o] = bound[o]! + sum
  }
}
