// The Communicator contract: collectives of one group of ranks. Every method is a Step: it yields while it waits.
//
// All members call the same collectives in the same order with matching arguments. Each arrival publishes what it is
// about to do, in the caller's words, and compares with the others: disagreement is an error that names the field, not
// a hang and not wrong numbers. Sums run over members in ascending order, so they are the same bits on every member and
// for every split of the rows. A member may return while others still read: what it published stays valid until then.
import type { Operand } from '../device/ops.js'
import type { Step } from '../runtime/wait.js'

/** What the caller is doing, for comparison and for error messages: an operation of the program, or a fixed name. */
export interface CollectiveTag {
  /** Index in the program, or a negative number for the engine's own collectives. */
  readonly operation: number
  /** -1 outside layers. */
  readonly layer: number
  /** "all_gather of attention output". */
  readonly label: string
}

/** All rows of a collective, and those a member wants. */
export interface RowRange {
  readonly all: number
  readonly from: number
  readonly count: number
}

/** Members publish in two places by turns: which of them. */
export type Parity = 0 | 1

/** Where the members publish rows of one width at one parity, for kernels. A member writes only its own rows. */
export interface Window {
  /** f32 [rows, width] by member. */
  readonly members: readonly Operand[]
  /** i32 [1]: which of the members' rows a `reduce` wants first. */
  readonly first: Operand
}

export interface Communicator {
  /** Name of the group for messages: "world", "attn_tp", "moe_ep" … */
  readonly group: string
  /** Index of this member in the group. */
  readonly member: number
  readonly size: number
  /** Global rank of each member, ascending. */
  readonly ranks: readonly number[]

  /** Starts the comparison of a new engine step: collectives publish this number. */
  beginStep(step: number): void

  barrier(tag: CollectiveTag): Step<void>

  /** i32 words: `all` = the members' `own`, in member order. Outside the program: votes, hashes. */
  allGatherWords(tag: CollectiveTag, own: Int32Array, all: Int32Array): Step<void>

  /** out[Σ counts, width] = the members' x[counts[m], width] one after another. Unequal counts make it all-gather-v. */
  allGather(tag: CollectiveTag, x: Operand, out: Operand, width: number, counts: ArrayLike<number>): Step<void>

  /** x[rows, width] = Σ over members of x, in place. */
  allReduce(tag: CollectiveTag, x: Operand, width: number, rows: number): Step<void>

  /** out[counts[own], width] = the own piece of Σ over members of x[Σ counts, width]. Unequal counts make it reduce-scatter-v. */
  reduceScatter(tag: CollectiveTag, x: Operand, out: Operand, width: number, counts: ArrayLike<number>): Step<void>

  /** Windows of a width, by parity: the same objects every time. */
  windows(width: number): readonly [Window, Window]

  /** Parity of this member's next collective. Its own rows in that window are free to be written. */
  readonly nextParity: Parity

  /**
   * A reduction whose sum the caller makes: publishes x[rows.all, width] and waits for all members. Then the members' rows
   * lie in the window of the parity that is returned, `first` is rows.from, and both stay so until this member's next
   * collective of the group. The caller sums over members in ascending order.
   */
  reduce(tag: CollectiveTag, x: Operand, width: number, rows: RowRange): Step<Parity>

  /** allGather of rows that the caller has written to its own window of `nextParity`: one copy less. */
  allGatherWritten(tag: CollectiveTag, out: Operand, width: number, counts: ArrayLike<number>): Step<void>

  /**
   * The members hold column blocks of the same rows; each gets whole rows, but only those it asks for:
   * out[rowCount, Σ widths] = rows [rowFrom, rowFrom + rowCount) of the members' x[rows, widths[m]] side by side.
   */
  gatherColumns(tag: CollectiveTag, x: Operand, out: Operand, widths: ArrayLike<number>, rows: RowRange): Step<void>

  /** x[rows, width] of member `root` reaches all members. */
  broadcast(tag: CollectiveTag, x: Operand, width: number, rows: number, root: number): Step<void>
}
