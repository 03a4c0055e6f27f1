// Every flag of the engine and of the server, as data. Names are SGLang's wherever SGLang has the flag.
// The command line, `startEngine`, --help and the docs read these tables, some of which have files of their own; nothing else
// lists flags.

import { DEVICE_FLAGS } from './device-flags.js'
import { type FlagInput, type FlagTable, type FlagValues, resolveFlags } from './flag-spec.js'
import { PARALLEL_FLAGS } from './parallel-flags.js'
import { SERVER_FLAGS } from './server-flags.js'

export { SERVER_FLAGS } from './server-flags.js'

const any = Number.MAX_SAFE_INTEGER

export const ENGINE_FLAGS = {
  /** Directory of a Hugging Face checkpoint. */
  modelPath: {
    name: 'model-path',
    type: 'string',
    default: null,
    group: 'Model',
    help: 'directory of a Hugging Face checkpoint; the same as naming it as DIR',
  },
  /** Name under which the model is served. */
  servedModelName: {
    name: 'served-model-name',
    type: 'string',
    default: null,
    defaultHelp: "the directory's name",
    group: 'Model',
    help: 'name of the model in the API',
  },
  /** Precision of the weights in memory, on a GPU of activations and KV cache too. Sums are always float32. */
  dtype: {
    name: 'dtype',
    type: 'choice',
    choices: ['auto', 'float32', 'bfloat16'],
    default: 'auto',
    group: 'Model',
    help: 'precision of the weights in memory, on a GPU of activations and KV cache too; auto keeps what the checkpoint was stored for',
  },
  /** `dummy` needs only config.json. */
  loadFormat: {
    name: 'load-format',
    type: 'choice',
    choices: ['auto', 'dummy'],
    default: 'auto',
    group: 'Model',
    help: 'dummy makes seeded random weights from config.json alone',
  },
  /** Fields that replace those of config.json. */
  jsonModelOverrideArgs: {
    name: 'json-model-override-args',
    type: 'json',
    default: null,
    defaultHelp: 'none',
    group: 'Model',
    help: 'JSON object of fields that replace those of config.json',
  },
  /** Longest prompt plus output, in tokens. */
  contextLength: {
    name: 'context-length',
    type: 'integer',
    min: 1,
    max: any,
    default: null,
    defaultHelp: "the model's",
    group: 'Model',
    help: 'longest prompt plus output, in tokens',
  },
  /** Tokens of prompts that one step takes at most. */
  chunkedPrefillSize: {
    name: 'chunked-prefill-size',
    type: 'integer',
    min: 1,
    max: 1 << 20,
    default: 512,
    // As SGLang on GPUs with 60 GB and more (server_args.py); here on every GPU, whatever its memory.
    defaultOnGpu: 8192,
    group: 'Scheduling',
    help: 'prompt tokens that one step takes at most; longer prompts go in chunks',
  },
  /** Requests that run at once; the others wait. */
  maxRunningRequests: {
    name: 'max-running-requests',
    type: 'integer',
    min: 1,
    max: 1 << 16,
    default: 32,
    defaultOnGpu: 256,
    group: 'Scheduling',
    help: 'requests that run at once; further ones wait',
  },
  /** Larger admits fewer requests at once. */
  scheduleConservativeness: {
    name: 'schedule-conservativeness',
    type: 'number',
    min: 0,
    max: 100,
    aboveMin: true,
    default: 1,
    group: 'Scheduling',
    help: 'how careful admission is: larger counts with more output tokens, so fewer requests run at once and fewer are retracted',
  },
  /** Decode steps between steps with prompt tokens. */
  prefillDecodeInterval: {
    name: 'prefill-decode-interval',
    type: 'integer',
    min: 0,
    max: 1 << 16,
    default: 0,
    group: 'Scheduling',
    help: 'steps without prompt tokens after each one with, while requests decode',
  },
  /** Align prefills over attention-DP ranks. */
  enablePrefillDelayer: {
    name: 'enable-prefill-delayer',
    type: 'boolean',
    default: false,
    group: 'Scheduling',
    help: 'let prompts wait until other attention-DP ranks have some too, since a prefill on one rank slows all',
  },
  prefillDelayerMaxDelayPasses: {
    name: 'prefill-delayer-max-delay-passes',
    type: 'integer',
    min: 0,
    max: 1 << 16,
    default: 30,
    group: 'Scheduling',
    help: 'steps a prompt waits at most for other attention-DP ranks',
  },
  /** Keep no prefixes. */
  disableRadixCache: {
    name: 'disable-radix-cache',
    type: 'boolean',
    default: false,
    group: 'Memory',
    help: 'keep no computed prefixes for later requests',
  },
  /** Size of the KV cache in tokens. */
  maxTotalTokens: {
    name: 'max-total-tokens',
    type: 'integer',
    min: 1,
    max: any,
    default: null,
    defaultHelp: 'what max-running-requests x context-length needs, at most what memory allows',
    group: 'Memory',
    help: 'size of the KV cache in tokens',
  },
  /** Tokens of one page of the KV cache. */
  pageSize: {
    name: 'page-size',
    type: 'integer',
    min: 1,
    max: 1024,
    default: 16,
    group: 'Memory',
    help: 'tokens of one page of the KV cache',
  },
  /** Share of the memory that weights and KV cache may take. */
  memFractionStatic: {
    name: 'mem-fraction-static',
    type: 'number',
    min: 0,
    max: 1,
    aboveMin: true,
    default: null,
    defaultHelp: 'the KV cache takes at most a quarter of the memory left',
    group: 'Memory',
    help: 'share of the memory that weights and KV cache may take',
  },
  ...PARALLEL_FLAGS,
  ...DEVICE_FLAGS,
} as const satisfies FlagTable

/** Checked engine flags. `modelPath` is set for everything that starts an engine. */
export type EngineFlags = FlagValues<typeof ENGINE_FLAGS>
export type ServerFlags = FlagValues<typeof SERVER_FLAGS>

/** Engine flags from any subset of them; the rest gets its default. @throws ConfigError */
export const engineFlags = (given: FlagInput<typeof ENGINE_FLAGS> = {}): EngineFlags =>
  resolveFlags(ENGINE_FLAGS, given)

/** Server flags from any subset of them. @throws ConfigError */
export const serverFlags = (
  given: FlagInput<typeof SERVER_FLAGS> = {},
  env: Readonly<Record<string, string | undefined>> = {},
): ServerFlags => resolveFlags(SERVER_FLAGS, given, env)
