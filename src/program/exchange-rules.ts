// Rules of exchange buffers, checked while a program is built. Such a buffer is this rank's half of a group's exchange memory,
// the one that its next collective in the group publishes. So between the first write and the all_gather that publishes it
// there is no other collective of the group, and afterwards the memory belongs to a later contribution.
import { Unreachable } from '../config/errors.js'
import { type Operation, type ProgramGroup, readsOf, writesOf } from './operation.js'
import type { BufferSpec } from './program.js'

type Buffers = ReadonlyMap<string, BufferSpec>

function exchangesOf(op: Operation, buffers: Buffers): BufferSpec[] {
  const refs = op.kind === 'all_gather' ? writesOf(op) : [...readsOf(op), ...writesOf(op)]
  const names = new Set(refs.map(ref => ref.buffer))
  return [...names].flatMap(name => {
    const spec = buffers.get(name)
    return spec?.kind === 'exchange' ? [spec] : []
  })
}

/** The exchange buffer an operation works in, or null. An all_gather only hands its own over. */
export const exchangeOf = (op: Operation, buffers: Buffers): BufferSpec | null => exchangesOf(op, buffers)[0] ?? null

export class ExchangeRules {
  /** Written and not yet published, by group. */
  readonly #open = new Map<ProgramGroup, string>()

  /** @returns the buffer that the operation publishes, if any: what it held is gone */
  emitted(op: Operation, buffers: Buffers): string | null {
    const group = 'group' in op.args ? op.args.group : null
    const places = exchangesOf(op, buffers)
    for (const place of places) this.#work(op, place, group, places.length)
    const open = group === null ? undefined : this.#open.get(group)
    const published = op.kind === 'all_gather' && buffers.get(op.args.x.buffer)?.kind === 'exchange'
    if (!published) {
      if (open !== undefined) throw refused(op, `comes between the writing of ${open} and its gather`)
      return null
    }
    const { x } = op.args
    const spec = buffers.get(x.buffer)!
    if (spec.group !== group || open !== x.buffer)
      throw refused(op, `gathers ${x.buffer}, which is not the group's next`)
    if (x.width !== spec.columns) throw refused(op, `gathers a part of ${x.buffer}`)
    this.#open.delete(spec.group!)
    return x.buffer
  }

  #work(op: Operation, { name, group }: BufferSpec, ownGroup: ProgramGroup | null, places: number): void {
    if (group === ownGroup || places > 1) throw refused(op, `works in ${name} across a collective, or in two exchanges`)
    const open = this.#open.get(group!)
    if (open !== undefined && open !== name) throw refused(op, `works in ${name} while ${open} waits`)
    this.#open.set(group!, name)
  }

  end(): void {
    for (const open of this.#open.values()) throw new Unreachable(`${open} is written and never gathered`)
  }
}

const refused = (op: Operation, why: string): Unreachable => new Unreachable(`${op.kind} (${op.label}) ${why}`)
