// Failures after which a process can no longer use its GPU, or no longer end by itself: each in a process of its own, a `switchyard
// generate` whose output and exit count.
import { execFile } from 'node:child_process'
import { fileURLToPath } from 'node:url'
import { describe, expect, it } from 'vitest'
import { planModel } from '../../src/engine/load-model.js'
import { openDevice } from '../../src/engine/open-device.js'
import { flagsFor } from '../engine/harness.js'
import { argumentsOf, ONE_RANK, SEVERAL_GPUS, TWO_RANKS } from './models.js'

const BINARY = fileURLToPath(new URL('../../bin/switchyard.js', import.meta.url))
const ONE = argumentsOf(ONE_RANK)
const TWO = argumentsOf(TWO_RANKS)
/** Tells an end from none: a kernel of the drill runs for 60 s. */
const LIMIT_MS = 45_000

interface Ended {
  readonly code: number | null
  readonly signal: NodeJS.Signals | null
  readonly stderr: string
}

/** Its environment decides whether the host waits after every operation. */
function generate(
  drill: Readonly<Record<string, unknown>>,
  args: readonly string[],
  env: Readonly<Record<string, string>> = {},
): Promise<Ended> {
  const model = ['models/demo', '--input-ids', '3,5,7', '--max-tokens', '40', '--context-length', '256']
  const common = ['--max-total-tokens', '4096', '--dtype', 'float32', '--failure-drill', JSON.stringify(drill)]
  return new Promise(resolve => {
    const child = execFile(
      process.execPath,
      [BINARY, 'generate', ...model, ...common, ...args],
      { timeout: LIMIT_MS, killSignal: 'SIGTERM', env: { ...process.env, NO_COLOR: '1', ...env } },
      (_error, _stdout, stderr) => resolve({ code: child.exitCode, signal: child.signalCode, stderr }),
    )
  })
}

/** "layer 1, operation 30 (linear: …)" of the demo model's program. */
function placeOf(operation: number): string {
  const flags = flagsFor('models/demo')
  const { layer, kind, label } = planModel(flags, openDevice(flags)).programs[0]![0]!.program.operations[operation]!
  return `layer ${layer}, operation ${operation} (${kind}: ${label})`
}

describe('a kernel that reads where nothing is', () => {
  it('ends the process with an error that names rank and step, and where it was seen', async () => {
    const { code, signal, stderr } = await generate({ kind: 'bad_address', step: 6, operation: 12 }, ONE)
    console.info(stderr)
    expect([code, signal], stderr).toEqual([1, null])
    expect(stderr).toMatch(/error SY_CUDA_CALL: rank 0 failed in step [67], seen in .*ILLEGAL_ADDRESS/)
    expect(stderr).toMatch(/\nfix: .*SWITCHYARD_CUDA_SYNC=1/)
    expect(stderr).not.toMatch(/Unhandled|\n\s+at /)
  })

  it('and the operation, where the host waits after each', async () => {
    const env = { SWITCHYARD_CUDA_SYNC: '1' }
    const drill = { kind: 'bad_address', step: 6, operation: 12 }
    const { code, stderr } = await generate(drill, [...ONE, '--disable-cuda-graph'], env)
    expect(code, stderr).toBe(1)
    expect(stderr).toContain(`rank 0 failed in step 6, seen in ${placeOf(12)}`)
  })

  it('an index outside its table is then found after the operation that read it', async () => {
    const env = { SWITCHYARD_CUDA_SYNC: '1' }
    const { code, stderr } = await generate({ kind: 'bad_page', step: 6 }, [...ONE, '--disable-cuda-graph'], env)
    expect(code, stderr).toBe(1)
    expect(stderr).toMatch(
      /SY_CUDA_BAD_INDEX: rank 0 failed in step 6, layer 0, operation \d+ \(attention: .*: page \d+/,
    )
  })

  it.runIf(SEVERAL_GPUS)(
    'on one of two GPUs: both fail, since each reaches the other, and whoever notices first says that it may be the other',
    async () => {
      // The only request is rank 0's: the other one launches nothing but exchanges.
      const { code, signal, stderr } = await generate({ kind: 'bad_address', rank: 0, step: 6, operation: 12 }, TWO)
      console.info(stderr)
      expect([code, signal], stderr).toEqual([1, null])
      expect(stderr).toMatch(
        /error SY_CUDA_CALL: rank [01] failed in step \d+, seen in .* \(or in a kernel of another rank\): /,
      )
    },
  )
})

describe('a rank that does not come back', () => {
  it('a kernel that does not end: the watchdog names the rank, and the process ends', async () => {
    const { code, signal, stderr } = await generate({ kind: 'spin', step: 6, operation: 12 }, [
      ...ONE,
      ...['--watchdog-timeout', '3'],
    ])
    console.info(stderr)
    expect([code, signal], stderr).toEqual([1, null])
    expect(stderr).toMatch(/error SY_RANK_STALLED: rank 0 has not moved for \d\.\d s in step [67], /)
  })

  it('a host that hangs in native code: the process kills itself', async () => {
    const { code, signal, stderr } = await generate({ kind: 'hang', step: 6, operation: 12 }, [
      ...ONE,
      ...['--watchdog-timeout', '3'],
    ])
    expect([code, signal], stderr).toEqual([null, 'SIGKILL'])
    expect(stderr).toMatch(/SY_RANK_STUCK: rank 0 cannot be stopped.*in step 6, /)
    expect(stderr).toContain(placeOf(12))
  })
})
