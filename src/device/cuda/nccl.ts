// NCCL's all-to-all between the GPUs of one process, as a control beside our own dispatch. Names are those of nccl.h.
import type { LibraryHandle } from 'koffi'
import { findNccl } from './libraries.js'
import { PackedMemory } from './packed-memory.js'

const HANDLE = 'size_t'
const SIGNATURES = {
  ncclCommInitAll: [HANDLE, 'int', HANDLE],
  ncclCommDestroy: [HANDLE],
  ncclGroupStart: [],
  ncclGroupEnd: [],
  ncclSend: [HANDLE, 'size_t', 'int', 'int', HANDLE, HANDLE],
  ncclRecv: [HANDLE, 'size_t', 'int', 'int', HANDLE, HANDLE],
} as const
type Name = keyof typeof SIGNATURES

const UINT8 = 1

/** What one rank gives and takes: device memory of `ranks` pieces, and the stream it is queued on. */
export interface AllToAllRank {
  readonly from: number
  readonly to: number
  readonly stream: number
}

/** NCCL was found and does not do what it is asked for. */
export class NcclError extends Error {}

export class Nccl implements Disposable {
  readonly #call = {} as Record<Name, (...args: unknown[]) => number>
  readonly #communicators: readonly number[]
  /** Held: a handle that is collected unloads its library. */
  readonly #library: LibraryHandle

  /**
   * @returns null where libnccl is not to be found
   * @throws NcclError where it cannot be used
   */
  static open(gpus: readonly number[], env = process.env): Nccl | null {
    const found = findNccl(env)
    if (!found) return null
    try {
      return new Nccl(found, gpus)
    } catch (error) {
      throw error instanceof NcclError ? error : new NcclError(String(error), { cause: error })
    }
  }

  private constructor({ koffi, handle }: NonNullable<ReturnType<typeof findNccl>>, gpus: readonly number[]) {
    for (const [name, types] of Object.entries(SIGNATURES))
      this.#call[name as Name] = handle.func(name, 'int', [...types]) as unknown as (...args: unknown[]) => number
    this.#library = handle
    const list = new PackedMemory(koffi, 4 * gpus.length)
    gpus.forEach((gpu, i) => {
      list.u32(4 * i, gpu)
    })
    const out = new PackedMemory(koffi, 8 * gpus.length)
    this.#checked('ncclCommInitAll', out.address, gpus.length, list.address)
    const { bytes } = out
    this.#communicators = [...new BigUint64Array(bytes.buffer, bytes.byteOffset, gpus.length)].map(Number)
  }

  #text(result: number): string {
    return String(this.#library.func('ncclGetErrorString', 'str', ['int'])(result))
  }

  #checked(name: Name, ...args: unknown[]): void {
    const result = this.#call[name](...args)
    if (result !== 0) throw new NcclError(`${name}: ${this.#text(result)}`)
  }

  /** Queues on all ranks: piece r of every rank's `from` goes to rank r. @param bytes of a piece */
  allToAll(ranks: readonly AllToAllRank[], bytes: number): void {
    this.#checked('ncclGroupStart')
    try {
      ranks.forEach(({ from, to, stream }, r) => {
        for (const peer of ranks.keys()) {
          this.#checked('ncclSend', from + peer * bytes, bytes, UINT8, peer, this.#communicators[r], stream)
          this.#checked('ncclRecv', to + peer * bytes, bytes, UINT8, peer, this.#communicators[r], stream)
        }
      })
    } catch (error) {
      // A group that stays open would take up what is called next. Its own result is that of the call that failed.
      this.#call.ncclGroupEnd()
      throw error
    }
    this.#checked('ncclGroupEnd')
  }

  /** Nothing may be running. */
  [Symbol.dispose](): void {
    // What does not go is no use to anybody who could hear of it.
    for (const communicator of this.#communicators) this.#call.ncclCommDestroy(communicator)
  }
}
