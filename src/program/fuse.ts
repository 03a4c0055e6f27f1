// Which operations of a program have one kernel together on a device that has such kernels (device/device-ops.ts). A pure
// function over the operations: binding decides whether to follow it. What lies between the projection of an attention layer
// and its attention is found by shape, whatever the model is called.
import { type Operation, type Ref, readsOf, writesOf } from './operation.js'

type Args<K extends Operation['kind']> = Extract<Operation, { kind: K }>['args']

interface QkNormRopeStore {
  readonly kind: 'qk_norm_rope_store'
  /** Queries, keys and values side by side. */
  readonly x: Ref
  readonly heads: number
  readonly kvHeads: number
  readonly headWidth: number
  readonly norms: { readonly q: string; readonly k: string; readonly eps: number } | null
  readonly rope: Args<'rope'>
  readonly store: Args<'store_kv'>
}

interface LatentNormRopeStore {
  readonly kind: 'latent_norm_rope_store'
  /** The latent and the shared key side by side. */
  readonly x: Ref
  readonly norm: Args<'rms_norm'>
  readonly rope: Args<'rope'>
  readonly store: Args<'store_kv'>
}

export type Fusion = QkNormRopeStore | LatentNormRopeStore

/** Operations [first, first + count) of a program; one kernel if `fusion` is set, else one operation. */
export interface OperationGroup {
  readonly first: number
  readonly count: number
  readonly fusion: Fusion | null
}

/** Every operation once, in order. */
export function fuseOperations(operations: readonly Operation[]): OperationGroup[] {
  const groups: OperationGroup[] = []
  for (let first = 0; first < operations.length; ) {
    const found = fusionAt(operations, first)
    const group = found ?? { first, count: 1, fusion: null }
    groups.push(group)
    first += group.count
  }
  return groups
}

function fusionAt(operations: readonly Operation[], first: number): OperationGroup | null {
  for (const [count, match] of [
    [5, normedHeads],
    [3, plainHeads],
    [3, latent],
  ] as const) {
    const part = operations.slice(first, first + count)
    if (part.length < count || part.some(op => op.rows !== part[0]!.rows)) continue
    const fusion = match(part)
    if (fusion && !readLater(operations.slice(first + count), undefinedAfter(fusion))) return { first, count, fusion }
  }
  return null
}

/** rms_norm of queries, of keys, then as plainHeads. */
function normedHeads([q, k, ...rest]: readonly Operation[]): Fusion | null {
  const plain = plainHeads(rest)
  if (plain === null || q?.kind !== 'rms_norm' || k?.kind !== 'rms_norm') return null
  const { x, heads, kvHeads, headWidth } = plain
  const parts = [
    [q.args, x.column, heads],
    [k.args, x.column + heads * headWidth, kvHeads],
  ] as const
  const fits = parts.every(
    ([a, column, groups]) =>
      same(a.x, a.out) &&
      same(a.x, { buffer: x.buffer, column, width: groups * headWidth }) &&
      a.width === headWidth &&
      a.groups === groups,
  )
  if (!fits || q.args.eps !== k.args.eps) return null
  return { ...plain, norms: { q: q.args.weight, k: k.args.weight, eps: q.args.eps } }
}

/** Rope of queries, rope of keys, store of keys and values: side by side in one buffer. */
function plainHeads([q, k, store]: readonly Operation[]): QkNormRopeStore | null {
  if (q?.kind !== 'rope' || k?.kind !== 'rope' || store?.kind !== 'store_kv') return null
  const headWidth = q.args.xHeadStride
  const [heads, kvHeads] = [q.args.heads, k.args.heads]
  const { buffer, column } = q.args.x
  const keys = { buffer, column: column + heads * headWidth, width: kvHeads * headWidth }
  const fits =
    inPlace(q.args) &&
    inPlace(k.args) &&
    k.args.xHeadStride === headWidth &&
    q.args.x.width === heads * headWidth &&
    same(k.args.x, keys) &&
    same(store.args.x, { ...keys, width: 2 * kvHeads * headWidth }) &&
    q.args.table === k.args.table &&
    q.args.width === k.args.width &&
    q.args.interleaved === k.args.interleaved &&
    same(q.args.positions, k.args.positions)
  if (!fits) return null
  const x = { buffer, column, width: (heads + 2 * kvHeads) * headWidth }
  return { kind: 'qk_norm_rope_store', x, heads, kvHeads, headWidth, norms: null, rope: q.args, store: store.args }
}

/** rms_norm of a latent, rope of the key behind it, store of both. */
function latent([norm, rope, store]: readonly Operation[]): Fusion | null {
  if (norm?.kind !== 'rms_norm' || rope?.kind !== 'rope' || store?.kind !== 'store_kv') return null
  const { x, width } = norm.args
  const fits =
    same(x, norm.args.out) &&
    norm.args.groups === 1 &&
    x.width === width &&
    inPlace(rope.args) &&
    rope.args.heads === 1 &&
    same(rope.args.x, { buffer: x.buffer, column: x.column + width, width: rope.args.width }) &&
    same(store.args.x, { buffer: x.buffer, column: x.column, width: width + rope.args.width })
  if (!fits) return null
  return { kind: 'latent_norm_rope_store', x: store.args.x, norm: norm.args, rope: rope.args, store: store.args }
}

const same = (a: Ref, b: Ref): boolean => a.buffer === b.buffer && a.column === b.column && a.width === b.width

const inPlace = (a: Args<'rope'>): boolean => same(a.x, a.out) && a.xHeadStride === a.outHeadStride

/** Columns that the kernel leaves in another state than the separate operations do. */
function undefinedAfter(fusion: Fusion): Ref {
  if (fusion.kind === 'latent_norm_rope_store') return fusion.x
  const queries = fusion.heads * fusion.headWidth
  return { buffer: fusion.x.buffer, column: fusion.x.column + queries, width: fusion.x.width - queries }
}

/** Whether an operation reads some of `ref` before the buffer is written anew. Partial writes count as none. */
function readLater(operations: readonly Operation[], ref: Ref): boolean {
  for (const op of operations) {
    if (readsOf(op).some(r => overlap(r, ref))) return true
    if (writesOf(op).some(r => r.buffer === ref.buffer && r.column <= ref.column && end(r) >= end(ref))) return false
  }
  return false
}

const end = (r: Ref): number => r.column + r.width
const overlap = (a: Ref, b: Ref): boolean => a.buffer === b.buffer && a.column < end(b) && b.column < end(a)
