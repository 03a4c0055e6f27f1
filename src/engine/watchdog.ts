// Who keeps the others waiting? Looks at the status words of all ranks and, when one has not moved for too long, names
// the rank at fault: whoever is awaited and is not waiting itself. A pure function; the rank host calls it in turns.
import type { RankStatus } from '../runtime/control.js'

/** A rank's last movement. */
export interface Movement {
  readonly beat: number
  /** When the beat was first seen, in milliseconds. */
  readonly since: number
}

export interface Verdict {
  /** The rank at fault. */
  readonly rank: number
  /** Ranks that wait, directly or through others, for it. */
  readonly waiting: readonly number[]
  /** How long, in milliseconds. */
  readonly forMs: number
}

export interface WatchLimits {
  /** A rank may compute one operation so long. */
  readonly stallMs: number
  /** A rank may wait for another so long. */
  readonly waitMs: number
}

/**
 * Updates the movements in place of the old ones. While a rank starts the others may wait for it: only starting itself
 * takes time then.
 */
export function observe(statuses: readonly RankStatus[], seen: readonly Movement[], now: number): Movement[] {
  const someStart = statuses.some(s => s.phase === 'starting')
  return statuses.map((status, rank) => {
    const last = seen[rank]
    const excused = status.phase === 'stopped' || (someStart && status.phase !== 'starting')
    const moved = last === undefined || last.beat !== status.beat || excused
    return moved ? { beat: status.beat, since: now } : last
  })
}

/** The movements after the whole process stood still (stopped, or a machine that slept): nobody is to blame for that. */
export const forgive = (seen: readonly Movement[], forMs: number): Movement[] =>
  seen.map(({ beat, since }) => ({ beat, since: since + forMs }))

export function judge(
  statuses: readonly RankStatus[],
  movements: readonly Movement[],
  limits: WatchLimits,
  now: number,
): Verdict | null {
  const still = (rank: number) => now - movements[rank]!.since
  for (const status of statuses) {
    const { rank, waitingFor, phase } = status
    if (waitingFor >= 0 && still(rank) > limits.waitMs) {
      const culprit = follow(statuses, rank)
      const waiting = statuses.filter(
        s => s.waitingFor >= 0 && s.rank !== culprit && follow(statuses, s.rank) === culprit,
      )
      return { rank: culprit, waiting: waiting.map(s => s.rank), forMs: still(rank) }
    }
    if (waitingFor < 0 && phase !== 'idle' && phase !== 'stopped' && still(rank) > limits.stallMs) {
      return { rank, waiting: [], forMs: still(rank) }
    }
  }
  return null
}

/** Along the chain of who waits for whom, to the first that waits for nobody (or closes a ring). */
function follow(statuses: readonly RankStatus[], from: number): number {
  const visited = new Set<number>()
  let rank = from
  while (!visited.has(rank)) {
    visited.add(rank)
    const next = statuses[rank]!.waitingFor
    if (next < 0 || next >= statuses.length) return rank
    rank = next
  }
  return rank
}
