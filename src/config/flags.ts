// Every flag of the engine and of the server, as data. Names are SGLang's wherever SGLang has the flag.
// The command line, `startEngine`, --help and the docs read these tables; nothing else lists flags.

import { type FlagInput, type FlagTable, type FlagValues, resolveFlags } from './flag-spec.js'
import { PARALLEL_FLAGS } from './parallel-flags.js'

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
  /** Precision of the weights in memory. Sums are always float32. */
  dtype: {
    name: 'dtype',
    type: 'choice',
    choices: ['auto', 'float32', 'bfloat16'],
    default: 'auto',
    group: 'Model',
    help: 'precision of the weights in memory; auto keeps what the checkpoint was stored for',
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
  /** Where ranks compute: cpu, cuda or cuda:N. */
  device: {
    name: 'device',
    type: 'string',
    pattern: /^(cpu|cuda(:\d{1,4})?)$/,
    patternHelp: 'cpu, cuda, or cuda:N for GPU N',
    default: 'cpu',
    group: 'Device',
    help: 'where ranks compute: cpu, cuda, or cuda:N for GPU N',
  },
  /** First GPU. */
  baseGpuId: {
    name: 'base-gpu-id',
    type: 'integer',
    min: 0,
    max: 1023,
    default: 0,
    group: 'Device',
    help: 'GPU of the first rank, when --device names none',
  },
  /** No captured graphs. */
  disableCudaGraph: {
    name: 'disable-cuda-graph',
    type: 'boolean',
    default: false,
    group: 'Device',
    help: 'on GPUs: launch the kernels of decode steps one by one instead of replaying captured graphs',
  },
  /** Largest batch that a captured graph runs. */
  cudaGraphMaxBs: {
    name: 'cuda-graph-max-bs',
    type: 'integer',
    min: 1,
    max: 1 << 16,
    default: null,
    defaultHelp: 'as --max-running-requests, at most 256',
    group: 'Device',
    help: 'on GPUs: largest decode batch that a captured graph runs',
  },
  /** Batch sizes of captured graphs. */
  cudaGraphBs: {
    name: 'cuda-graph-bs',
    type: 'string',
    pattern: /^\d{1,5}(,\d{1,5})*$/,
    patternHelp: 'batch sizes with commas between them',
    default: null,
    defaultHelp: '1,2,4 and then multiples of 8',
    group: 'Device',
    help: 'on GPUs: batch sizes that graphs are captured for, with commas between them; smaller batches are padded to the next',
  },
  /** Known results before the next step is formed. */
  disableOverlapSchedule: {
    name: 'disable-overlap-schedule',
    type: 'boolean',
    default: false,
    group: 'Device',
    help: 'on GPUs: wait for what a step drew before the next one is formed',
  },
  /** Which kernels compute: compiled here, the WebAssembly module of the package, or the plain TypeScript reference. */
  kernels: {
    name: 'kernels',
    type: 'choice',
    choices: ['auto', 'native', 'wasm', 'reference'],
    default: 'auto',
    group: 'Device',
    help: 'native kernels, WebAssembly (4 GiB at most, slower prompts) or the slow TypeScript reference; auto: the first that is there',
  },
  /** Seed of dummy weights and of requests without a seed. */
  randomSeed: {
    name: 'random-seed',
    type: 'integer',
    min: 0,
    max: 0xffffffff,
    default: null,
    defaultHelp: 'drawn at start',
    group: 'Device',
    help: 'seed of dummy weights and of requests that bring none',
  },
  /** A failure to rehearse. */
  failureDrill: {
    name: 'failure-drill',
    type: 'json',
    default: null,
    defaultHelp: 'none',
    group: 'Device',
    help: 'rehearse a failure: {"rank": 1, "step": 20, "operation": 12, "kind": "throw | stall | hang | exit | wrong_rows | wrong_plan | wrong_flag"}',
  },
  /** Seconds without progress of a step after which a rank counts as stuck. */
  watchdogTimeout: {
    name: 'watchdog-timeout',
    type: 'number',
    min: 0,
    max: 86_400,
    aboveMin: true,
    default: 300,
    group: 'Device',
    help: 'seconds that one step may take before the engine counts as stuck',
  },
} as const satisfies FlagTable

export const SERVER_FLAGS = {
  /** Address to listen on. */
  host: {
    name: 'host',
    type: 'string',
    default: '127.0.0.1',
    group: 'Server',
    help: 'address to listen on; 0.0.0.0 opens the server to other machines',
  },
  /** 0 takes any free port. */
  port: {
    name: 'port',
    type: 'integer',
    min: 0,
    max: 65_535,
    default: 30_000,
    env: 'PORT',
    group: 'Server',
    help: 'port to listen on; 0 takes any free one',
  },
  /** Clients must send it as a bearer token. */
  apiKey: {
    name: 'api-key',
    type: 'string',
    default: null,
    defaultHelp: 'none: anyone who reaches the port may ask',
    env: 'SWITCHYARD_API_KEY',
    group: 'Server',
    help: 'key that clients must send (Authorization: Bearer KEY)',
  },
  /** Least severe log lines that are written. */
  logLevel: {
    name: 'log-level',
    type: 'choice',
    choices: ['debug', 'info', 'warn', 'error', 'silent'],
    default: 'info',
    group: 'Server',
    help: 'least severe log lines to write to stderr',
  },
  /** Seconds that running requests get to finish after Ctrl-C or SIGTERM. */
  shutdownTimeout: {
    name: 'shutdown-timeout',
    type: 'number',
    min: 0,
    max: 86_400,
    default: 30,
    group: 'Server',
    help: 'seconds that running requests get to finish after Ctrl-C; a second Ctrl-C aborts them',
  },
  /** Largest request body, in bytes. */
  maxBodyBytes: {
    name: 'max-body-bytes',
    type: 'integer',
    min: 1024,
    max: 1 << 30,
    default: 16 << 20,
    group: 'Server',
    help: 'largest request body, in bytes',
  },
  /** Connections the server holds at once. */
  maxConnections: {
    name: 'max-connections',
    type: 'integer',
    min: 1,
    max: 1 << 20,
    default: 4096,
    group: 'Server',
    help: 'connections held at once; further ones are answered 503 and closed',
  },
  /** Requests that may wait to be run. */
  maxQueuedRequests: {
    name: 'max-queued-requests',
    type: 'integer',
    min: 1,
    max: 1 << 20,
    default: null,
    defaultHelp: 'no limit',
    group: 'Server',
    help: 'requests that may wait to be run; further ones are answered 503',
  },
  /** Events of one stream that may wait for a slow client. */
  maxStreamBacklog: {
    name: 'max-stream-backlog',
    type: 'integer',
    min: 16,
    max: 1 << 24,
    default: 4096,
    group: 'Server',
    help: 'tokens of one choice that may wait for a client that reads too slowly; then its request is aborted',
  },
  /** Seconds a client may leave its stream unread. */
  streamStallTimeout: {
    name: 'stream-stall-timeout',
    type: 'number',
    min: 0,
    max: 86_400,
    aboveMin: true,
    default: 60,
    group: 'Server',
    help: 'seconds a client may leave its stream unread before the connection is closed',
  },
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
