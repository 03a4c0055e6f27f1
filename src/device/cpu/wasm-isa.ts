// Which instruction sets of WebAssembly this Node has, and compiling for them: the base vectors, and relaxed SIMD, whose multiply-add is one
// fused instruction where the processor has one. Each has a module of its own, because a module with unknown instructions does not compile.
// Relaxed means that machines may differ, not runs: an engine picks one form of an instruction and keeps to it.
import { readFileSync } from 'node:fs'
import { setFlagsFromString } from 'node:v8'
import { type WasmModule, WebAssembly } from './webassembly.js'

export type WasmIsa = 'simd128' | 'relaxed-simd'

const ALL: readonly WasmIsa[] = ['simd128', 'relaxed-simd']

export const isWasmIsa = (name: string | undefined): name is WasmIsa => ALL.includes(name as WasmIsa)

/** What this Node runs, the best last. */
export function wasmIsas(): readonly WasmIsa[] {
  hasRelaxed ??= testRelaxed()
  return hasRelaxed ? ALL : ALL.slice(0, 1)
}

/** The committed module, from `src/` and `dist/` alike; scripts/build-wasm.mjs makes it. */
export const wasmPath = (isa: WasmIsa): URL =>
  new URL(`../../../kernels/wasm/${isa === 'simd128' ? 'kernels' : 'kernels-relaxed'}.wasm`, import.meta.url)

/**
 * Compiles everything now and with the optimizing compiler. Left to itself V8 starts with slow code and replaces a
 * function after many calls: the first hundred tokens then take up to ten times as long.
 * Throws what the file system or the compiler throws.
 */
export function compileKernels(path: string | URL, isa: WasmIsa): WasmModule {
  const bytes = readFileSync(path)
  return withFlags(['liftoff', 'wasm-lazy-compilation'], false, () =>
    isa === 'relaxed-simd' ? withRelaxed(() => new WebAssembly.Module(bytes)) : new WebAssembly.Module(bytes),
  )
}

let hasRelaxed: boolean | undefined

/** A function of no arguments: lane 0 of relaxed_madd(2, 3, 4) in f32x4. */
const PROBE = Buffer.from(
  'AGFzbQEAAAABBQFgAAF9AwIBAAcIAQRtYWRkAAAKHwEdAEMAAABA/RNDAABAQP0TQwAAgED9E/2FAv0fAAs=',
  'base64',
)

/** Compiles and runs one multiply-add: early proposals had the same instruction with its operands in another order. */
function testRelaxed(): boolean {
  try {
    const module = withRelaxed(() => new WebAssembly.Module(PROBE))
    const { madd } = new WebAssembly.Instance(module, {}).exports as { madd(): number }
    return madd() === 10
  } catch {
    return false
  }
}

/** V8 has the instructions since 11.3 (Node 20) and switches them on by itself since 11.4 (Node 21). */
function withRelaxed<T>(work: () => T): T {
  if (WebAssembly.validate(PROBE)) return work()
  return withFlags(['experimental-wasm-relaxed-simd'], true, work)
}

function withFlags<T>(names: readonly string[], on: boolean, work: () => T): T {
  const set = (value: boolean) => {
    for (const name of names) setFlagsFromString(`--${value ? '' : 'no-'}${name}`)
  }
  set(on)
  try {
    return work()
  } finally {
    set(!on)
  }
}
