// Operations beyond the Ops contract, for devices whose memory the host cannot read: what the CPU does on host memory
// becomes a kernel here, and chains of operations that are worth one kernel have one. Each fused operation says which
// operations of Ops, one after another, it stands for: those are its reference.
import type { MemorySpan } from './memory.js'
import type { Kernel, Operand, Ops, ParameterVector } from './ops.js'

export interface DeviceOps extends Ops {
  router(a: Parameters<Ops['router']>[0] & RouterExtras): Kernel

  /** x[:, 0..width) = min(max(x, -limit), limit), in place. */
  clamp(a: { x: Operand; width: number; limit: number }): Kernel

  /** out = table[ids] for i32 ids [rows, width]; -1 stays -1. */
  mapIds(a: { out: Operand; ids: Operand; table: MemorySpan; width: number }): Kernel

  /**
   * Logical → physical experts, by runtime/replica-hash.ts. `table` is i32 [experts, columns]: the number of replicas of an
   * expert, then their physical ids.
   */
  chooseReplicas(a: {
    out: Operand
    ids: Operand
    requestKeys: Operand
    positions: Operand
    table: MemorySpan
    columns: number
    layer: number
    width: number
  }): Kernel

  /**
   * x [rows, (heads + 2·kvHeads)·headWidth] holds queries, keys and values. rmsNorm of each head of queries (in place) and of keys
   * where norms are given, rope of both, storeKv of keys and values: `kv` gets the keys of all heads, then the values. Keys
   * and values in x itself are undefined afterwards. Numbers are not rounded to the type of x between the steps.
   */
  qkNormRopeStore(a: {
    x: Operand
    kv: Operand
    slots: Operand
    positions: Operand
    heads: number
    kvHeads: number
    headWidth: number
    norms?: { readonly q: ParameterVector; readonly k: ParameterVector; readonly eps: number }
    rope: RopeShape
  }): Kernel

  /**
   * x [rows, latent + rope.width]: rmsNorm of the latent, rope of the shared key behind it, storeKv of both. x is undefined
   * afterwards.
   */
  latentNormRopeStore(a: {
    x: Operand
    kv: Operand
    slots: Operand
    positions: Operand
    latent: number
    norm: { readonly weight: ParameterVector; readonly eps: number }
    rope: RopeShape
  }): Kernel
}

/** The part of Ops.rope that does not depend on where heads lie. */
export interface RopeShape {
  readonly width: number
  readonly cosSin: MemorySpan
  readonly interleaved: boolean
}

export interface RouterExtras {
  /** i32 [1], read when the kernel runs: rows from there on are padding and get ids -1 and weights 0. */
  readonly validRows?: Operand
  /**
   * Ids drawn instead of chosen, distinct in a row and uniform, a pure function of (salt, position, row); all of a row weigh
   * alike. For measurements with balanced experts.
   */
  readonly fake?: { readonly positions: Operand; readonly salt: number }
}
