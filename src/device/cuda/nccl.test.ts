// NCCL that is there and broken: a library with its names whose sends fail. What it is asked for is told, and no group stays open.
import { execFileSync } from 'node:child_process'
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, describe, expect, it } from 'vitest'
import { findNccl } from './libraries.js'
import { Nccl, NcclError } from './nccl.js'

const folder = mkdtempSync(join(tmpdir(), 'nccl-'))
afterAll(() => rmSync(folder, { recursive: true }))

const SOURCE = `
#include <stddef.h>
static int groups;
int open_groups(void) { return groups; }
const char *ncclGetErrorString(int result) { return result == 3 ? "internal error" : "unhandled system error"; }
int ncclCommInitAll(size_t *out, int n, const int *gpus) {
  for (int i = 0; i < n; i++) { if (gpus[i] > 7) return 2; out[i] = 100 + i; }
  return 0;
}
int ncclCommDestroy(size_t c) { (void)c; return 2; }
int ncclGroupStart(void) { groups++; return 0; }
int ncclGroupEnd(void) { groups--; return 3; }
int ncclSend(size_t p, size_t n, int type, int peer, size_t c, size_t s) { (void)p, (void)n, (void)type, (void)c, (void)s; return peer == 1 ? 3 : 0; }
int ncclRecv(size_t p, size_t n, int type, int peer, size_t c, size_t s) { (void)p, (void)n, (void)type, (void)peer, (void)c, (void)s; return 0; }
`

function build(name: string, source: string): NodeJS.ProcessEnv | null {
  const at = join(folder, name)
  try {
    execFileSync('mkdir', [at])
    writeFileSync(join(at, 'nccl.c'), source)
    execFileSync('cc', ['-shared', '-fPIC', '-o', join(at, 'libnccl.so.2'), join(at, 'nccl.c')])
  } catch {
    return null
  }
  return { SWITCHYARD_CUDA_PATH: at }
}

const env = build('broken', SOURCE)

describe.skipIf(env === null || findNccl(env) === null)('NCCL that does not work', () => {
  it('closes the group in which a call failed, and says which', () => {
    const groups = findNccl(env!)!.handle.func('open_groups', 'int', []) as unknown as () => number
    using nccl = Nccl.open([0, 1], env!)!
    const ranks = [0, 1].map(() => ({ from: 0, to: 0, stream: 0 }))
    expect(() => nccl.allToAll(ranks, 16)).toThrow(new NcclError('ncclSend: internal error'))
    expect(groups()).toBe(0)
    // Without a peer whose sends fail it is the end of the group that does.
    expect(() => nccl.allToAll(ranks.slice(0, 1), 16)).toThrow(new NcclError('ncclGroupEnd: internal error'))
    expect(groups()).toBe(0)
  })

  it('is told when it cannot start, or has not the names', () => {
    expect(() => Nccl.open([0, 8], env!)).toThrow(new NcclError('ncclCommInitAll: unhandled system error'))
    const bare = build('bare', 'int nothing(void) { return 0; }')!
    expect(() => Nccl.open([0], bare)).toThrow(NcclError)
  })
})
