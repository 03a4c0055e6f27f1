// Who sent when, and who saw it when. Ranks record their own waits only; where they meet is the same operation of the same
// step on each of them, or the voting phase for what ranks exchange outside the program.
import type { Span, StepEvent } from './read.js'
import { operationOf, type Trace } from './trace.js'

/** The place outside the program: the vote of a step. */
export const VOTING = -1

/** Something that left rank `from` in one place and was taken in by rank `to`. */
export interface Arrival {
  readonly step: number
  readonly from: number
  readonly to: number
  /** Milliseconds: it had been sent by then; it was there for the receiver. sentAt <= seenAt. */
  readonly sentAt: number
  readonly seenAt: number
  /** True: sentAt lies in the sender's voting phase and seenAt in the receiver's; false: in their operations. */
  readonly voting: boolean
  readonly label: string
}

/** A rank in one place of a step: the span of the operation or phase, and the end of its wait for each peer. */
interface Visit {
  readonly span: Span
  firstWait: number
  readonly waited: Map<number, number>
}

type Visits = ReadonlyMap<number, Visit>

function visitsOf(trace: Trace, step: StepEvent): Visits {
  const visits = new Map<number, Visit>()
  const visit = (place: number, span: Span) => visits.set(place, { span, firstWait: span.end, waited: new Map() })
  for (const phase of step.phases) if (trace.phases[phase.phase] === 'voting') visit(VOTING, phase)
  for (const op of step.operations) visit(op.operation, op)
  for (const wait of step.waits) {
    const place = visits.get(wait.operation)
    if (!place) continue
    place.firstWait = Math.min(place.firstWait, wait.start)
    place.waited.set(wait.peer, wait.end)
  }
  return visits
}

/**
 * Every arrival of the trace, step by step. When a rank waits it has sent, and when another has seen what it sent it has
 * too: the earliest of these moments is `sentAt`. A receiver that did not wait saw it once it was both there and sent.
 */
export function* arrivalsOf(trace: Trace): Generator<Arrival> {
  const numbers = new Set(trace.ranks.flatMap(r => r.events.steps.map(s => s.step)))
  const bySteps = trace.ranks.map(rank => new Map(rank.events.steps.map(s => [s.step, s])))
  for (const number of [...numbers].sort((a, b) => a - b)) {
    const steps = new Map<number, { readonly step: StepEvent; readonly visits: Visits }>()
    trace.ranks.forEach(({ rank }, i) => {
      const step = bySteps[i]!.get(number)
      if (step) steps.set(rank, { step, visits: visitsOf(trace, step) })
    })
    for (const receiver of trace.ranks) {
      const own = steps.get(receiver.rank)
      if (!own) continue
      for (const [place, here] of own.visits) {
        const known = place === VOTING ? null : operationOf(receiver, own.step, place)
        const group = place === VOTING ? [...steps.keys()] : (known?.group ?? [])
        const source = place === VOTING ? VOTING : (known?.sentBy ?? place)
        for (const from of group) {
          const there = from === receiver.rank ? undefined : steps.get(from)?.visits.get(source)
          if (!there) continue
          const seen = group.flatMap(to => {
            const visit = to === from ? undefined : steps.get(to)?.visits.get(place)
            return visit ? [visit.waited.get(from) ?? visit.span.end] : []
          })
          const sentAt = Math.max(there.span.start, Math.min(there.firstWait, there.span.end, ...seen))
          const at = here.waited.get(from) ?? Math.min(Math.max(here.span.start, sentAt), here.span.end)
          const label = known?.label ?? 'vote'
          const common = { step: number, from, to: receiver.rank, label, voting: place === VOTING }
          yield { ...common, sentAt, seenAt: Math.max(sentAt, at) }
        }
      }
    }
  }
}
