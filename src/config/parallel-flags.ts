// Flags that decide how many ranks there are and what each holds. Names and defaults are SGLang's.
import type { FlagTable } from './flag-spec.js'

const size = (name: string, help: string) =>
  ({ name, type: 'integer', min: 1, max: 4096, default: 1, group: 'Parallelism', help }) as const

export const PARALLEL_FLAGS = {
  /** Ranks of the engine. */
  tpSize: size('tp-size', 'ranks: attn-dp x attn-cp x attn-tp for attention, moe-dp x ep x moe-tp for experts'),
  /** Whole replicas, or, with --enable-dp-attention, attention data-parallel. */
  dpSize: size(
    'dp-size',
    'whole replicas beside each other; with --enable-dp-attention the old name of --attn-dp-size',
  ),
  /** Attention data-parallel ranks: each has its own scheduler, requests and KV cache. */
  attnDpSize: size('attn-dp-size', 'attention data-parallel ranks, each with its own requests and KV cache'),
  attnCpSize: size('attn-cp-size', 'ranks that share one context in attention'),
  /** Ranks that experts are spread over. */
  epSize: {
    name: 'ep-size',
    type: 'integer',
    min: 1,
    max: 4096,
    default: null,
    defaultHelp: '1: every rank holds a cut of every expert',
    group: 'Parallelism',
    help: 'ranks that experts are spread over',
  },
  moeDpSize: size('moe-dp-size', 'copies of the experts that each serve part of the tokens'),
  moeDenseTpSize: {
    name: 'moe-dense-tp-size',
    type: 'integer',
    min: 1,
    max: 4096,
    default: null,
    defaultHelp: 'dense layers are cut over all ranks',
    group: 'Parallelism',
    help: '1 keeps dense layers whole on every attention-DP rank',
  },
  enableDpAttention: {
    name: 'enable-dp-attention',
    type: 'boolean',
    default: false,
    group: 'Parallelism',
    help: 'old spelling: reads --dp-size as --attn-dp-size',
  },
  enableDpLmHead: {
    name: 'enable-dp-lm-head',
    type: 'boolean',
    default: false,
    group: 'Parallelism',
    help: 'cut the output head over attention-TP only, so that rows to sample need not be gathered',
  },
  nnodes: size('nnodes', 'node processes'),
  nodeRank: {
    name: 'node-rank',
    type: 'integer',
    min: 0,
    max: 4095,
    default: 0,
    group: 'Parallelism',
    help: 'which of the nodes this is',
  },
  /** How rows of all attention-DP ranks come together. */
  dpGather: {
    name: 'dp-gather',
    type: 'choice',
    choices: ['auto', 'all_gather', 'all_gatherv', 'all_reduce'],
    default: 'auto',
    group: 'Parallelism',
    help: 'how rows of all attention-DP ranks come together: padded to the longest (all_gather) or one after another; auto picks the cheaper each step',
  },
  /** How requests are spread over attention-DP ranks. */
  loadBalanceMethod: {
    name: 'load-balance-method',
    type: 'choice',
    choices: ['auto', 'round_robin', 'total_requests', 'total_tokens', 'cache_aware'],
    refused: { follow_bootstrap_room: 'it belongs to prefill-decode disaggregation, which is not built yet' },
    default: 'auto',
    group: 'Parallelism',
    help: 'how requests are spread over attention-DP ranks; auto is round_robin; cache_aware goes where most of the prompt is cached',
  },
  /** Seconds a rank may wait in a collective. */
  distTimeout: {
    name: 'dist-timeout',
    type: 'number',
    min: 0,
    max: 86_400,
    aboveMin: true,
    default: null,
    defaultHelp: 'as --watchdog-timeout',
    group: 'Parallelism',
    help: 'seconds a rank may wait for others in a collective before the engine gives up, naming who is late',
  },
  moeA2aBackend: {
    name: 'moe-a2a-backend',
    type: 'choice',
    choices: ['none', 'deepep'],
    refused: Object.fromEntries(
      ['deepep_v2', 'mooncake', 'nixl', 'mori', 'pplx', 'ascend_fuseep', 'ascend_tp', 'flashinfer', 'megamoe'].map(
        name => [name, 'use --moe-a2a-backend deepep or none'],
      ),
    ),
    default: 'none',
    group: 'Experts',
    help: 'how tokens travel to experts; none gathers all rows on every rank, deepep sends each row to the ranks of its experts',
  },
  /** How an all-to-all moves rows. */
  deepepMode: {
    name: 'deepep-mode',
    type: 'choice',
    choices: ['auto', 'normal', 'low_latency'],
    default: 'auto',
    group: 'Experts',
    help: 'normal: exact counts first; low_latency: fixed slots; auto: normal for steps with prompts or more tokens than slots',
  },
  deepepDispatcherOutputDtype: {
    name: 'deepep-dispatcher-output-dtype',
    type: 'choice',
    choices: ['auto', 'f32', 'bf16', 'fp8', 'int8'],
    default: 'auto',
    group: 'Experts',
    help: 'what rows travel to experts as; auto is f32 on the CPU; all but f32 come back as bf16',
  },
  deepepNumMaxDispatchTokensPerRank: {
    name: 'deepep-num-max-dispatch-tokens-per-rank',
    type: 'integer',
    min: 1,
    max: 65_536,
    default: 128,
    // As many as requests run at once there: a step of decoding that does not fit goes 'normal', which has no graphs.
    defaultOnGpu: 256,
    env: 'SGLANG_DEEPEP_NUM_MAX_DISPATCH_TOKENS_PER_RANK',
    group: 'Experts',
    help: 'low-latency slots: tokens a rank may bring to one low-latency dispatch',
  },
  deepepConfig: {
    name: 'deepep-config',
    type: 'string',
    default: null,
    defaultHelp: 'rows go straight to their place',
    group: 'Experts',
    help: 'JSON, or a JSON file: chunk and ring sizes of normal dispatch, in the keys of DeepEP: {"normal_dispatch": {"num_sms": 4, "num_max_nvl_chunked_send_tokens": 6, "num_max_nvl_chunked_recv_tokens": 256}}',
  },
  epNumRedundantExperts: {
    name: 'ep-num-redundant-experts',
    type: 'integer',
    min: 0,
    max: 65_536,
    default: 0,
    group: 'Experts',
    help: 'physical experts beside the logical ones: replicas of hot experts',
  },
  /** Which logical expert each physical one is. */
  initExpertLocation: {
    name: 'init-expert-location',
    type: 'string',
    default: 'trivial',
    group: 'Experts',
    help: 'trivial, a .json or .pt file, or inline JSON with physical_to_logical_map or logical_count',
  },
  epDispatchAlgorithm: {
    name: 'ep-dispatch-algorithm',
    type: 'choice',
    choices: ['auto', 'dynamic', 'fake'],
    refused: {
      static: 'replicas are chosen by a hash, with an all-to-all backend and without one; use dynamic',
      lp: 'replicas are chosen by a hash, with an all-to-all backend and without one; use dynamic',
    },
    default: 'auto',
    group: 'Experts',
    help: 'how a replica of an expert is chosen; dynamic: by a hash of layer, expert, request and position; fake: experts drawn evenly instead of routed, for measurements',
  },
} as const satisfies FlagTable
