// The Ops contract: the arithmetic of a rank, whatever the device.
//
// A method binds an operation's fixed arguments (where its operands lie, its sizes) once and returns a Kernel; a step
// then only says how many rows there are. Bound kernels allocate nothing. They may return before the device has
// finished. Promised on `cpu`: the result of a row does not depend on other rows, on the number of rows or on their
// place (fixed order of sums over K; attention in fixed blocks of KV positions), so batching never changes a bit.
//
// Shapes are row-major, f32 unless said otherwise. `Operand.stride` is the distance between rows in elements.
import type { MemorySpan } from './memory.js'

/** Runs a bound operation on the first `rows` rows. `rows` is 0 on an idle rank. */
export type Kernel = (rows: number) => void

/** Rows in device memory: element [r][c] lies at `offset + r * stride + c` elements of `span`. */
export interface Operand {
  readonly span: MemorySpan
  /** What an element is. Left out: four bytes, f32 or i32 as the operation says. `bf16` is met on accelerators only. */
  readonly dtype?: ActivationDtype
  /** First element, in elements from the start of the span. */
  readonly offset: number
  /** Elements between rows. */
  readonly stride: number
}

export type WeightKind = 'f32' | 'bf16'

/** What activations are stored as. The CPU computes in f32 only. */
export type ActivationDtype = 'f32' | 'bf16'

/** Bytes of an element of activations, weights or the KV cache. */
export const elementBytes = (dtype: ActivationDtype | WeightKind = 'f32'): 2 | 4 => (dtype === 'bf16' ? 2 : 4)

/**
 * `count` matrices of logical size [n, k] (y = x · Wᵀ) in the layout of the device whose packer wrote them. Matrix i starts at
 * `i * strideBytes` of `span`. The packed shape is never read as n and k. An int8 kind with scales will join as a further `kind`.
 * - `cpu`: panels of 16 output rows, padded with zeros: f32 `[ceil(n/16)][k][16]`, bf16 `[ceil(n/16)][ceil(k/2)][16][2]`.
 * - `cuda`: row-major [n, k].
 */
export interface PackedMatrix {
  readonly kind: WeightKind
  readonly n: number
  readonly k: number
  readonly count: number
  /** Bytes between matrices, a multiple of 64. */
  readonly strideBytes: number
  readonly span: MemorySpan
}

/** A row of f32 parameters (norm weights, biases, sinks), or `count` of them one after another. */
export interface ParameterVector {
  readonly length: number
  readonly span: MemorySpan
}

/** How a checkpoint stores numbers. F8 E4M3 (finite, "fn") comes with f32 scales per block. */
export type SourceDtype = 'F32' | 'F16' | 'BF16' | 'F8_E4M3'

/** Where the elements of a weight come from: `rows × cols` numbers of a source tensor, maybe transposed. */
export interface PackSource {
  readonly dtype: SourceDtype
  /** Raw bytes of the whole source tensor (a view of the mapped file), row-major. */
  readonly bytes: Uint8Array
  /** Index in `bytes`, in elements, of the first element taken. */
  readonly offset: number
  /** Source elements between two consecutive output rows (n) and two consecutive inputs (k): a transpose swaps them. */
  readonly strideN: number
  readonly strideK: number
  /** Block scales of F8: multiply element at source row r, column c by `scales[floor(r/blockRows)][floor(c/blockCols)]`. */
  readonly scales?: {
    readonly values: Float32Array
    readonly blockRows: number
    readonly blockCols: number
    readonly columns: number
    /** Columns of the source tensor, to find r and c from an element index. */
    readonly sourceColumns: number
  }
}

/**
 * Made-up elements: output row i, input c is `table[scramble(key, offset + i * strideN + c * strideK)]`, with the scrambling of
 * formats/loader/dummy-weights.ts.
 */
export interface DrawnElements {
  readonly table: Float32Array
  readonly key: number
  readonly offset: number
  readonly strideN: number
  readonly strideK: number
}

export type RouterScoring = 'softmax' | 'sigmoid' | 'softmax_after_topk'

/** How experts are chosen for a token (sources: the models' reference code in Hugging Face transformers; SGLang layers/moe/topk). */
export interface RouterSpec {
  readonly experts: number
  readonly topK: number
  readonly scoring: RouterScoring
  /** Group-limited choice: keep `topGroups` of `groups` groups; a group's score is its best, or the sum of its two best (biased) scores. */
  readonly groups: number
  readonly topGroups: number
  readonly groupScore: 'max' | 'top2'
  /** Divide the chosen weights by their sum (+1e-20 for sigmoid). */
  readonly normalize: boolean
  /** Multiply the chosen weights at the end (routed_scaling_factor). */
  readonly scale: number
}

/** `silu`: silu(gate) · up. `swiglu_clamped` (gpt-oss): gate ≤ limit, |up| ≤ limit, gate · σ(alpha·gate) · (up + 1). */
export type GatedActivation =
  | { readonly kind: 'silu' }
  | { readonly kind: 'swiglu_clamped'; readonly limit: number; readonly alpha: number }

/** Where a batch's KV lies. Row t of the batch belongs to sequence `rowSequence[t]` and stands at `positions[t]`. */
export interface PagedBatch {
  /** i32 [rows]: index of the sequence in `pageTable`. */
  readonly rowSequence: Operand
  /** i32 [rows]: position of the row's token in its sequence, from 0. */
  readonly positions: Operand
  /** i32 [sequences, max pages]: page numbers; `stride` is max pages. Position p lies in slot `page[p / pageSize] * pageSize + p % pageSize`. */
  readonly pageTable: Operand
  readonly pageSize: number
}

export interface Ops {
  /** Short name for reports: "native avx512", "reference". */
  readonly name: string

  /** out[r, :] = table[ids[r], :] from a packed [vocab, hidden] matrix. `ids` is i32. Ids outside the table give zeros. */
  embed(a: { out: Operand; ids: Operand; table: PackedMatrix }): Kernel

  /** out = x / rms(x) * weight, for `groups` consecutive pieces of `width` elements in each row (query/key norm has one piece a head). out may be x. */
  rmsNorm(a: { out: Operand; x: Operand; weight: ParameterVector; width: number; groups: number; eps: number }): Kernel

  /** residual += x; out = residual / rms(residual) * weight. One pass. */
  addRmsNorm(a: {
    out: Operand
    residual: Operand
    x: Operand
    weight: ParameterVector
    width: number
    eps: number
  }): Kernel

  /**
   * residual[r] += Σ over m ascending of xs[m][first + r]; out = residual / rms(residual) * weight. One pass; the sum is made
   * first, in f32: the bits of summing into a row and then addRmsNorm. `first` is i32 [1], read when the kernel runs.
   * For rows where their ranks published them. Left out by devices whose ranks cannot read each other's memory.
   */
  sumAddRmsNorm?(a: {
    out: Operand
    residual: Operand
    xs: readonly Operand[]
    first: Operand
    weight: ParameterVector
    width: number
    eps: number
  }): Kernel

  /** out[:, 0..width) = a + b. out may be a or b. */
  add(a: { out: Operand; a: Operand; b: Operand; width: number }): Kernel

  /** out[:, 0..width) = x[:, 0..width). */
  copy(a: { out: Operand; x: Operand; width: number }): Kernel

  /** out[r, :] = x[index[r], 0..width). `index` is i32. */
  gatherRows(a: { out: Operand; x: Operand; index: Operand; width: number }): Kernel

  /** out[r, 0..n) (+)= x[r, 0..k) · Wᵀ + bias. */
  linear(a: { out: Operand; x: Operand; weight: PackedMatrix; bias?: ParameterVector; accumulate?: boolean }): Kernel

  /**
   * One small matrix a head (MLA's absorbed projections): for each head h,
   * out[r, h*outHeadStride .. +n) = x[r, h*xHeadStride .. +k) · W[h]ᵀ.
   */
  headLinear(a: { out: Operand; outHeadStride: number; x: Operand; xHeadStride: number; weight: PackedMatrix }): Kernel

  /**
   * Rotary embedding of `width` elements of each of `heads` pieces, `headStride` apart, into `out` (same layout rules,
   * own strides; may be x). `cosSin` is f32 [positions, width]: the first half cosines, the second half sines, attention
   * factor already multiplied in. `interleaved`: pairs are (2i, 2i+1) in x; else (i, i + width/2). The output of an interleaved
   * rope is stored de-interleaved (first halves, then second halves), as in Hugging Face's DeepSeek; scores do not depend on it.
   */
  rope(a: {
    out: Operand
    outHeadStride: number
    x: Operand
    xHeadStride: number
    heads: number
    width: number
    positions: Operand
    cosSin: MemorySpan
    interleaved: boolean
  }): Kernel

  /** kv[slot[r] * kv.stride + kv.offset + c] = x[r, c] for c < width. `slots` is i32; a negative slot stores nothing. */
  storeKv(a: { kv: Operand; x: Operand; slots: Operand; width: number }): Kernel

  /**
   * Causal paged attention. Query head h of row t: q[t, h*qkWidth ..]; it reads KV head floor(h * kvHeads / heads):
   * key at kv[slot*stride + keyOffset + kvHead*qkWidth], value at kv[slot*stride + valueOffset + kvHead*vWidth].
   * out[t, h*vWidth .. +vWidth). MLA in absorbed form is kvHeads = 1 with the value inside the key.
   * `window`: a row sees the last `window` positions including itself. `sinks`: one logit a head that joins the softmax's sum only.
   */
  attention(a: {
    out: Operand
    q: Operand
    kv: Operand
    batch: PagedBatch
    heads: number
    kvHeads: number
    qkWidth: number
    vWidth: number
    keyOffset: number
    valueOffset: number
    scale: number
    window?: number
    sinks?: ParameterVector
  }): Kernel

  /** ids i32 [rows, topK] and weights [rows, topK], best first (ties: low id first), from logits [rows, experts] and the optional correction bias. */
  router(a: { ids: Operand; weights: Operand; logits: Operand; bias?: ParameterVector; spec: RouterSpec }): Kernel

  /** out[r, 0..width) = act(x[r, 0..width), x[r, width..2·width)): gate first, up second. */
  gatedActivation(a: { out: Operand; x: Operand; width: number; activation: GatedActivation }): Kernel

  /** out[r, 0..width) (+)= x[r, 0..width) · sigmoid(gate[r, 0]) (qwen2-moe's shared expert). */
  sigmoidScale(a: { out: Operand; x: Operand; gate: Operand; width: number; accumulate?: boolean }): Kernel

  /**
   * The routed experts of a token block, fused: out[r] = Σ over slots s in ascending order of weights[r,s] · down(act(gateUp(x[r]))) of
   * expert ids[r,s]. ids are i32 indices into `gateUp`/`down` (local physical experts); −1 adds nothing. `gateUp` is [2·inter, hidden], gate rows first.
   * `scratch` holds at least rows·topK·(2·inter + inter + hidden) elements, stride ignored.
   */
  experts(a: {
    out: Operand
    x: Operand
    ids: Operand
    weights: Operand
    topK: number
    gateUp: PackedMatrix
    down: PackedMatrix
    gateUpBias?: ParameterVector
    downBias?: ParameterVector
    activation: GatedActivation
    scratch: Operand
  }): Kernel

  /**
   * Draws one token a row. Greedy when temperature[r] is 0: the largest logit, low id first. Otherwise logits / temperature, then
   * top-k, top-p and min-p in that order (as SGLang), then the largest of logit + Gumbel noise, where the noise of token v is
   * a pure function of (seed, position, v): see runtime/random.ts. `params` is f32 [rows, 8]:
   * temperature, top_p, min_p, top_k (0 = off), then as u32 bits: seed low, seed high, position, unused.
   * out i32 [rows, 1]; logprob (optional) f32 [rows, 1]: log-softmax of the unscaled logits at the drawn token.
   */
  sample(a: { out: Operand; logits: Operand; params: Operand; vocab: number; logprob?: Operand }): Kernel
}

/** Packing: done once per start by the node, not by ranks. */
export interface Packer {
  /** Bytes of one packed [n, k] matrix, rounded up to 64. */
  packedBytes(kind: WeightKind, n: number, k: number): number
  /**
   * Writes rows [rowStart, rowStart + n) of matrix `index` of `target` from `source`. Padding of a fresh span is already zero.
   * Rounds to nearest even when target is bf16.
   */
  packMatrix(target: PackedMatrix, index: number, rowStart: number, n: number, source: PackSource): void
  /** Writes `length` elements at `offset` of a vector from a source read with strideN (strideK ignored). */
  packVector(target: ParameterVector, offset: number, length: number, source: PackSource): void
  /** Matrices asked for in f32 stay bf16 where the checkpoint holds them so and the run is bf16: nothing is lost. */
  readonly keepsBf16?: boolean
  /** What was packed into a vector. Left out: its span can be read. */
  vectorValues?(vector: ParameterVector): Float32Array
  /** packMatrix of made-up numbers, drawn on the device. Left out: the host makes them. */
  drawMatrix?(target: PackedMatrix, index: number, rowStart: number, n: number, drawn: DrawnElements): void
}
