// Checkpoints for tests, made in a temporary directory: derived from the fixtures (sharded, in old spelling, tied, with extra
// layers, in other number formats) or random with odd sizes. `using` removes them all.
import { cpSync, existsSync, mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import {
  type Checkpoint,
  openCheckpoint,
  type TensorToWrite,
  writeSafetensors,
} from '../src/formats/safetensors/index.js'
import { E4M3_MAX, fromBf16, fromE4m3, fromF16, toBf16, toE4m3, toF16 } from './number-encoding.js'
import { type RandomCheckpoint, randomConfig, randomTensors } from './random-checkpoints.js'

export type Json = Record<string, unknown>
export const FIXTURES = 'test/fixtures/checkpoints'

export interface Derivation {
  /** Spread the tensors over so many files under an index. */
  readonly shards?: number
  /** config.json as transformers 4 wrote it. */
  readonly oldSpelling?: boolean
  /** `shared`: no lm_head, tie_word_embeddings. `copied`: lm_head is a copy of the embeddings. Both give the same logits. */
  readonly tied?: 'shared' | 'copied'
  /** Tensors of one next-token-prediction layer behind the last (DeepSeek-V3, GLM-4). */
  readonly nextn?: boolean
  /** Weights in this format; F8_E4M3 for linear weights only, with block scales, the rest left as it is. */
  readonly dtype?: 'F16' | 'BF16' | 'F8_E4M3'
  /** Store the values that `dtype` rounds to as F32: must compute the same as the checkpoint in `dtype`. */
  readonly asF32?: boolean
  /** Rows and columns of an FP8 block. */
  readonly block?: readonly [number, number]
  /** Fields that replace those of config.json. */
  readonly config?: Json
  /** Last word on the tensors. */
  readonly edit?: (tensors: Map<string, TensorToWrite>) => void
}

export class TestCheckpoints implements Disposable {
  readonly #root = mkdtempSync(join(tmpdir(), 'sy-checkpoints-'))
  #made = 0

  /** An empty directory. */
  directory(): string {
    const dir = join(this.#root, String(this.#made++))
    mkdirSync(dir)
    return dir
  }

  /** A variant of a fixture (its name) or of any checkpoint directory. @returns its directory */
  derive(source: string, derivation: Derivation = {}): string {
    const from = existsSync(join(FIXTURES, source)) ? join(FIXTURES, source) : source
    let config = JSON.parse(readFileSync(join(from, 'config.json'), 'utf8')) as Json
    let tensors = tensorsOf(openCheckpoint(from))
    if (derivation.tied) config = tie(config, tensors, derivation.tied)
    if (derivation.nextn) config = addNextn(config, tensors)
    if (derivation.dtype) {
      const block = derivation.block ?? [128, 128]
      tensors = convert(tensors, derivation.dtype, derivation.asF32 ?? false, block)
      if (!derivation.asF32 && derivation.dtype === 'F8_E4M3')
        config = {
          ...config,
          quantization_config: {
            quant_method: 'fp8',
            fmt: 'e4m3',
            activation_scheme: 'dynamic',
            weight_block_size: block,
          },
        }
    }
    if (derivation.oldSpelling) config = toOldSpelling(config)
    derivation.edit?.(tensors)
    const dir = this.#write({ ...config, ...derivation.config }, tensors, derivation.shards ?? 1)
    for (const name of ['generation_config.json', 'tokenizer.json', 'tokenizer_config.json', 'reference.safetensors'])
      if (existsSync(join(from, name))) cpSync(join(from, name), join(dir, name))
    return dir
  }

  /** Random weights with sizes of your choice. @returns its directory */
  random(description: RandomCheckpoint): string {
    const config = randomConfig(description)
    return this.#write(config, randomTensors(config, description.seed ?? 0), 1)
  }

  [Symbol.dispose](): void {
    rmSync(this.#root, { recursive: true, force: true })
  }

  #write(config: Json, tensors: ReadonlyMap<string, TensorToWrite>, shards: number): string {
    const dir = this.directory()
    writeFileSync(join(dir, 'config.json'), `${JSON.stringify(config, null, 2)}\n`)
    if (shards === 1) {
      writeSafetensors(join(dir, 'model.safetensors'), tensors, { format: 'pt' })
      return dir
    }
    const weightMap: Record<string, string> = {}
    const parts = Array.from({ length: shards }, () => new Map<string, TensorToWrite>())
    const fileOf = (i: number): string =>
      `model-${String(i + 1).padStart(5, '0')}-of-${String(shards).padStart(5, '0')}.safetensors`
    for (const [i, [name, tensor]] of [...tensors].entries()) {
      parts[i % shards]!.set(name, tensor)
      weightMap[name] = fileOf(i % shards)
    }
    for (const [i, part] of parts.entries()) writeSafetensors(join(dir, fileOf(i)), part, { format: 'pt' })
    writeFileSync(join(dir, 'model.safetensors.index.json'), JSON.stringify({ metadata: {}, weight_map: weightMap }))
    return dir
  }
}

export function tensorsOf(checkpoint: Checkpoint): Map<string, TensorToWrite> {
  return new Map(
    [...checkpoint.tensors].map(([name, { dtype, shape }]) => [name, { dtype, shape, data: checkpoint.read(name) }]),
  )
}

/** The values of an F32 tensor, as a copy. */
export function f32Values(tensor: TensorToWrite): Float32Array {
  if (tensor.dtype !== 'F32') throw new Error(`not F32: ${tensor.dtype}`)
  const { buffer, byteOffset, byteLength } = tensor.data
  return new Float32Array(buffer.slice(byteOffset, byteOffset + byteLength))
}

function tie(config: Json, tensors: Map<string, TensorToWrite>, how: 'shared' | 'copied'): Json {
  if (how === 'shared') tensors.delete('lm_head.weight')
  else tensors.set('lm_head.weight', tensors.get('model.embed_tokens.weight')!)
  return { ...config, tie_word_embeddings: how === 'shared' }
}

function addNextn(config: Json, tensors: Map<string, TensorToWrite>): Json {
  const layers = config['num_hidden_layers'] as number
  const hidden = config['hidden_size'] as number
  const last = `model.layers.${layers - 1}.`
  const extra = `model.layers.${layers}.`
  for (const [name, tensor] of [...tensors])
    if (name.startsWith(last)) tensors.set(extra + name.slice(last.length), tensor)
  const fill = (shape: number[]): TensorToWrite => ({
    dtype: 'F32',
    shape,
    data: new Float32Array(shape.reduce((a, b) => a * b)).fill(0.5),
  })
  for (const norm of ['enorm', 'hnorm', 'shared_head.norm']) tensors.set(`${extra}${norm}.weight`, fill([hidden]))
  tensors.set(`${extra}eh_proj.weight`, fill([hidden, 2 * hidden]))
  for (const [to, source] of [
    ['embed_tokens', 'model.embed_tokens'],
    ['shared_head.head', 'lm_head'],
  ] as const) {
    const tensor = tensors.get(`${source}.weight`)
    if (tensor) tensors.set(`${extra}${to}.weight`, tensor)
  }
  return { ...config, num_nextn_predict_layers: 1 }
}

/** Linear weights that FP8 checkpoints quantise: not embeddings, head, norms, routers or gates of shared experts. */
const isLinear = (name: string, { shape }: TensorToWrite): boolean =>
  (shape.length === 2 && name.endsWith('_proj.weight')) ||
  /kv_a_proj_with_mqa\.weight$|experts\.\d+\.w[123]\.weight$/.test(name)

function convert(
  tensors: ReadonlyMap<string, TensorToWrite>,
  dtype: 'F16' | 'BF16' | 'F8_E4M3',
  asF32: boolean,
  block: readonly [number, number],
): Map<string, TensorToWrite> {
  const out = new Map<string, TensorToWrite>()
  for (const [name, tensor] of tensors) {
    const { shape } = tensor
    if (dtype === 'F8_E4M3') {
      if (!isLinear(name, tensor)) out.set(name, tensor)
      else for (const [key, value] of quantise(name, tensor, block, asF32)) out.set(key, value)
      continue
    }
    const values = f32Values(tensor)
    const [encode, decode] = dtype === 'BF16' ? [toBf16, fromBf16] : [toF16, fromF16]
    if (asF32) out.set(name, { dtype: 'F32', shape, data: values.map(v => decode(encode(v))) })
    else out.set(name, { dtype, shape, data: Uint16Array.from(values, encode) })
  }
  return out
}

function quantise(
  name: string,
  tensor: TensorToWrite,
  [blockRows, blockCols]: readonly [number, number],
  asF32: boolean,
): [string, TensorToWrite][] {
  const [rows, cols] = tensor.shape as [number, number]
  const values = f32Values(tensor)
  const scaleShape = [Math.ceil(rows / blockRows), Math.ceil(cols / blockCols)]
  const scales = new Float32Array(scaleShape[0]! * scaleShape[1]!)
  const blockOf = (i: number): number =>
    Math.floor(Math.floor(i / cols) / blockRows) * scaleShape[1]! + Math.floor((i % cols) / blockCols)
  for (const [i, v] of values.entries()) scales[blockOf(i)] = Math.max(scales[blockOf(i)]!, Math.abs(v) / E4M3_MAX)
  for (const [i, s] of scales.entries()) if (s === 0) scales[i] = 1
  const codes = Uint8Array.from(values, (v, i) => toE4m3(v / scales[blockOf(i)]!))
  if (asF32) {
    const data = Float32Array.from(codes, (code, i) => fromE4m3(code) * scales[blockOf(i)]!)
    return [[name, { dtype: 'F32', shape: tensor.shape, data }]]
  }
  return [
    [name, { dtype: 'F8_E4M3', shape: tensor.shape, data: codes }],
    [`${name}_scale_inv`, { dtype: 'F32', shape: scaleShape, data: scales }],
  ]
}

/** rope_theta and rope_scaling {type} for rope_parameters, torch_dtype for dtype, num_experts, no head_dim for DeepSeek. */
export function toOldSpelling(config: Json): Json {
  const { rope_parameters: rope, dtype, qk_head_dim: _, ...rest } = config
  const old: Json = { ...rest, torch_dtype: dtype, transformers_version: '4.46.0' }
  if (rest['kv_lora_rank'] !== undefined) delete old['head_dim']
  if (rest['model_type'] === 'qwen3_moe' && rest['num_local_experts'] !== undefined) {
    old['num_experts'] = rest['num_local_experts']
    delete old['num_local_experts']
  }
  if (rope === undefined) return old
  const { rope_type: type, rope_theta: theta, partial_rotary_factor: partial, ...scaling } = rope as Json
  old['rope_theta'] = theta
  old['rope_scaling'] = type === 'default' || type === undefined ? null : { type, ...scaling }
  if (partial !== undefined) old['partial_rotary_factor'] = partial
  return old
}
