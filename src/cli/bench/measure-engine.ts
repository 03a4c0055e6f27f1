// One engine from start to close under the benchmark's loads: what `bench engine` does once, and `--ablate` for every choice.
import { availableParallelism, cpus } from 'node:os'
import { ConfigError } from '../../config/config-errors.js'
import type { EngineFlags } from '../../config/flags.js'
import type { Engine } from '../../engine/index.js'
import { engineModule, startWithProgress } from '../engine.js'
import type { CliIo } from '../io.js'
import { measure, type Speed } from './run.js'

export interface BenchOptions {
  readonly promptTokens: number
  readonly outputTokens: number
  readonly seed: number
  readonly batches: readonly number[]
}

export interface BenchMachine {
  readonly processor: string
  readonly cores: number
  readonly node: string
}

export const benchMachine = (): BenchMachine => ({
  processor: cpus()[0]?.model.trim() ?? process.arch,
  cores: availableParallelism(),
  node: process.versions.node,
})

/** Flags under which the largest batch can run at once. */
export const roomFor = (flags: EngineFlags, options: BenchOptions): EngineFlags => ({
  ...flags,
  maxRunningRequests: Math.max(flags.maxRunningRequests, ...options.batches),
})

/** Starts, warms up, measures every batch size, and closes after `use` has looked. */
export async function measureEngine<T>(
  io: CliIo,
  flags: EngineFlags,
  { promptTokens, outputTokens, seed, batches }: BenchOptions,
  use: (engine: Engine, speeds: readonly Speed[]) => T,
): Promise<T> {
  const { startEngine } = await engineModule()
  const engine = await startWithProgress(io, startEngine, flags)
  try {
    const needed = promptTokens + outputTokens
    if (needed > engine.contextLength) {
      throw new ConfigError('SY_CONFIG_BAD_VALUE', {
        flag: '--prompt-tokens and --output-tokens',
        value: `${needed} together`,
        expected: `at most the context of ${engine.contextLength}`,
        suggestion: '',
      })
    }
    const now = () => performance.now()
    await measure(engine, { batch: 1, promptTokens, outputTokens: Math.min(16, outputTokens), seed: seed + 1 }, now)
    const speeds: Speed[] = []
    for (const batch of batches) {
      io.err(`measuring ${batch === 1 ? '1 stream' : `${batch} streams`}\n`)
      speeds.push(await measure(engine, { batch, promptTokens, outputTokens, seed }, now))
    }
    return use(engine, speeds)
  } finally {
    await engine.close(0)
  }
}
