// The few types of WebAssembly's JavaScript interface that are used here. They are part of the DOM library of TypeScript,
// which a program for Node does not include.

/** Compiled code. Can be posted to a worker. */
export interface WasmModule {
  readonly [Symbol.toStringTag]: 'WebAssembly.Module'
}

/** A shared memory. Can be posted to a worker; both then see the same bytes. */
export interface WasmMemory {
  /** A new object after each growth; older ones stay valid and show the same bytes, up to their old length. */
  readonly buffer: SharedArrayBuffer
  /** Adds zeroed pages of 64 KiB and returns how many there were before. Throws RangeError when it cannot. */
  grow(pages: number): number
}

export interface WasmGlobal {
  value: number
}

interface WasmInstance {
  readonly exports: unknown
}

type Imports = Readonly<Record<string, Readonly<Record<string, unknown>>>>

interface WasmInterface {
  /** Whether a module of these bytes would compile. */
  validate(bytes: Uint8Array): boolean
  readonly Module: new (bytes: Uint8Array) => WasmModule
  readonly Instance: new (module: WasmModule, imports: Imports) => WasmInstance
  readonly Memory: new (limits: { initial: number; maximum: number; shared: true }) => WasmMemory
}

export const WebAssembly = (globalThis as unknown as { WebAssembly: WasmInterface }).WebAssembly
