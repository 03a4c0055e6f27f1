// Rules of exchange buffers, checked while a program is built. Such a buffer is this rank's half of a group's exchange memory,
// the one that its next collective in the group publishes. So between the first write and the all_gather that publishes it
// there is no other collective of the group, and afterwards the memory belongs to a later contribution.
import { Unreachable } from '../config/errors.js'
import { type Operation, type ProgramGroup, readsOf, writesOf } from './operation.js'
import type { BufferSpec } from './program.js'

type Buffers = ReadonlyMap<string, BufferSpec>

/** The exchange buffer an operation works in, or null. An all_gather only hands its own over. */
export function workplaceOf(op: Operation, buffers: Buffers): BufferSpec | null {
  const refs = op.kind === 'all_gather' ? writesOf(op) : [...readsOf(op), ...writesOf(op)]
  const places = refs.flatMap(({ buffer }) => {
    const spec = buffers.get(buffer)
    return spec?.kind === 'exchange' ? [spec] : []
  })
  return places[0] ?? null
}

export class ExchangeRules {
  /** Written and not yet published, by group. */
  readonly #open = new Map<ProgramGroup, string>()

  /** @returns the buffer that the operation publishes, if any: what it held is gone */
  emitted(op: Operation, buffers: Buffers): string | null {
    const group = 'group' in op.args ? op.args.group : null
    const place = workplaceOf(op, buffers)
    if (place) this.#work(op, place, group)
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

  #work(op: Operation, place: BufferSpec, group: ProgramGroup | null): void {
    const own = place.group!
    const others = [...readsOf(op), ...writesOf(op)].some(r => r.buffer !== place.name && this.#isOpen(r.buffer))
    if (own === group || others) throw refused(op, `works in ${place.name} across a collective, or in two exchanges`)
    const open = this.#open.get(own)
    if (open !== undefined && open !== place.name) throw refused(op, `works in ${place.name} while ${open} waits`)
    this.#open.set(own, place.name)
  }

  #isOpen(buffer: string): boolean {
    return [...this.#open.values()].includes(buffer)
  }

  end(): void {
    for (const open of this.#open.values()) throw new Unreachable(`${open} is written and never gathered`)
  }
}

const refused = (op: Operation, why: string): Unreachable => new Unreachable(`${op.kind} (${op.label}) ${why}`)
