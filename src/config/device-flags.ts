// Flags of the device that a rank computes on, and of how a running engine is watched and rehearsed.
import type { FlagTable } from './flag-spec.js'

export const DEVICE_FLAGS = {
  /** Where ranks compute: cpu, cuda or cuda:N. */
  device: {
    name: 'device',
    type: 'string',
    pattern: /^(cpu|cuda(:\d{1,4}(,\d{1,4}){0,31})?)$/,
    patternHelp: 'cpu, cuda, or cuda:N for GPU N (cuda:N,M,... for the GPU of each rank)',
    default: 'cpu',
    group: 'Device',
    help: 'where ranks compute: cpu, cuda, or cuda:N from GPU N on (cuda:N,M,... for the GPU of each rank)',
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
    help: 'rehearse a failure: {"rank": 1, "step": 20, "operation": 12, "kind": "throw | stall | hang | exit | wrong_rows | wrong_plan | wrong_flag | bad_page | bad_address | spin"}',
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
