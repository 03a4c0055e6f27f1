// What both modes of an expert buffer share on one rank: its place in the group, views, kernels, signals, statistics, and how
// rows to send become rows in the wire format.
import { Unreachable } from '../../../config/errors.js'
import type { Clock } from '../../../runtime/clock.js'
import { ExpertBufferError } from '../../errors.js'
import type { ExpertBufferStatistics, Routing } from '../../expert-buffer.js'
import type { ExpertBufferConfig } from '../../expert-buffer-config.js'
import { computeLayout, type DispatchLayout, memberOfExpert } from '../../layout.js'
import { type Payload, sameFormat, type WireFormat } from '../../wire/format.js'
import { type Rows, type WireKernels, wireRows } from '../../wire/kernels.js'
import type { ExpertBufferMemory } from './memory.js'
import { Signals } from './signals.js'
import { EpViews } from './views.js'

export interface Statistics extends ExpertBufferStatistics {
  peakReceived: number
  peakSlots: number
  ringStalls: number
}

export class EpCore {
  readonly config: ExpertBufferConfig
  readonly member: number
  readonly rank: number
  readonly size: number
  readonly results: number
  /** [members + 1]: first physical expert of each member. */
  readonly expertStart: Int32Array
  readonly localExperts: number
  /** [physical experts]. */
  readonly memberOfExpert: Int32Array
  readonly views: EpViews
  readonly kernels: WireKernels
  readonly signals: Signals
  readonly statistics: Statistics

  constructor(memory: ExpertBufferMemory, rank: number, kernels: WireKernels, clock: Clock | undefined) {
    const { config, ranks, group } = memory
    this.config = config
    this.rank = rank
    this.member = ranks.indexOf(rank)
    if (this.member < 0) throw new Unreachable(`rank ${rank} is not in group ${group}`)
    this.size = ranks.length
    this.results = config.results ?? 2
    this.views = new EpViews(memory)
    this.kernels = kernels
    this.memberOfExpert = memberOfExpert(config.expertsOfMember)
    this.expertStart = new Int32Array(this.size + 1)
    for (let m = 0; m < this.size; m++) this.expertStart[m + 1] = this.expertStart[m]! + config.expertsOfMember[m]!
    this.localExperts = config.expertsOfMember[this.member]!
    this.statistics = {
      receivedPerExpert: new Float64Array(this.localExperts),
      waitedPerSource: new Float64Array(this.size),
      peakReceived: 0,
      peakSlots: 0,
      ringStalls: 0,
    }
    this.signals = new Signals({
      spans: memory.members.map(m => m.signals!.span),
      ranks,
      member: this.member,
      group,
      hidden: config.hidden,
      topK: config.topK,
      waited: this.statistics.waitedPerSource,
      clock,
    })
  }

  layout(routing: Routing): DispatchLayout {
    return computeLayout(this.config, this.memberOfExpert, routing.ids, routing.tokens, this.signals.active)
  }

  checkTokens(routing: Routing, limit: number, mode: string): void {
    const { tokens } = routing
    if (tokens > limit) throw new ExpertBufferError('SY_EP_TOO_MANY_TOKENS', { rank: this.rank, tokens, mode, limit })
  }

  /** The first `tokens` rows of a payload in the wire format, encoded into `staging` when they are not yet. */
  encoded(x: Payload, tokens: number, format: WireFormat, staging: Rows | undefined, label: string): Rows {
    if (x.kind === 'wire') {
      if (!sameFormat(x.rows.format, format)) throw this.#shape(label, nameOf(x.rows.format), nameOf(format))
      return this.#holds(wireRows(x.rows), tokens, label)
    }
    const rows = this.#holds(this.views.rowsOf(x.rows), tokens, label)
    if (format.dtype === 'f32' || tokens === 0) return rows
    this.kernels.transfer({ from: rows, to: staging!, n: tokens })
    return staging!
  }

  /** @throws ExpertBufferError SY_EP_SHAPE_CHANGED when there are fewer rows than the operation needs */
  #holds(rows: Rows, needed: number, label: string): Rows {
    if (rows.capacity < needed) throw this.#shape(label, `${rows.capacity} rows`, `${needed} rows of this dispatch`)
    return rows
  }

  /** Rows that a caller gave for reading or writing `needed` of them. */
  rowsGiven(operand: Parameters<EpViews['rowsOf']>[0], needed: number, label: string): Rows {
    return this.#holds(this.views.rowsOf(operand), needed, label)
  }

  #shape(label: string, found: string, expected: string): ExpertBufferError {
    return new ExpertBufferError('SY_EP_SHAPE_CHANGED', { rank: this.rank, label, what: 'rows:', found, expected })
  }

  count(perExpert: Int32Array): void {
    const total = this.statistics.receivedPerExpert
    for (let e = 0; e < perExpert.length; e++) total[e] = total[e]! + perExpert[e]!
  }
}

const nameOf = (f: WireFormat): string => `${f.dtype}${f.roundScales ? ' with rounded scales' : ''} of ${f.hidden}`
