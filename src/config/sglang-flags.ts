// Flags of SGLang's server that are not flags here, so that a command line written for SGLang can be pasted: those that
// change nothing a client could notice are accepted and named in a note; the others are refused with what to do instead.
// Names and which of them take a value: SGLang's server_args.py. Flags that are in neither list are simply unknown.

export interface IgnoredFlag {
  /** Whether a value follows. */
  readonly value: boolean
  /** Why it has no effect here. */
  readonly why: string
}

const switches = (why: string, ...names: string[]) => names.map(name => [name, { value: false, why }] as const)
const values = (why: string, ...names: string[]) => names.map(name => [name, { value: true, why }] as const)

/** By name without dashes. Leaving one of these out gives the same answers. */
export const IGNORED_FLAGS: Readonly<Record<string, IgnoredFlag>> = Object.fromEntries([
  ...switches('no code of a checkpoint is ever run', 'trust-remote-code'),
  ...switches('/metrics is always there', 'enable-metrics'),
  ...switches('no request is made before the server is ready', 'skip-server-warmup'),
  ...switches('ranks always sleep when there is nothing to do', 'sleep-on-idle'),
  ...switches('ranks find each other without it', 'enable-p2p-check', 'disable-custom-all-reduce', 'enable-nccl-nvls'),
  ...values('all ranks run on one node', 'dist-init-addr', 'nccl-port'),
  ...values(
    'kernels are chosen by what the machine offers, see switchyard doctor',
    'attention-backend',
    'prefill-attention-backend',
    'decode-attention-backend',
    'sampling-backend',
    'moe-runner-backend',
    'fp8-gemm-backend',
  ),
  ...switches('there is no PyTorch here', 'enable-torch-compile'),
  ...switches('which kernels are fused is chosen while the program is built', 'disable-shared-experts-fusion'),
  ...switches('a step holds prompts and decodes together anyway', 'enable-mixed-chunk'),
  ...switches('the batches of a step are not split in two', 'enable-two-batch-overlap', 'enable-single-batch-overlap'),
  ...values('the batches of a step are not split in two', 'tbo-token-distribution-threshold'),
  ...values('steps are not logged; /metrics and /v1/loads tell', 'decode-log-interval'),
  ...values('there is one log level, --log-level', 'log-level-http'),
  ...values('text is sent as it comes', 'stream-interval'),
  ...values('requests run in the order they come', 'schedule-policy'),
  ...values('--chunked-prefill-size bounds the prompt tokens of a step', 'max-prefill-tokens'),
  ...values('output is not constrained, and requests that ask for it are refused', 'grammar-backend'),
  ...values('there is one tokenizer', 'tokenizer-mode'),
  ...values('checkpoints are directories of this machine', 'download-dir'),
])

const PLAN = 'plan with switchyard eplb plan and start with --init-expert-location'

const all = (instead: string, ...names: string[]) => names.map(name => [name, instead] as const)

/** What to do instead, by name without dashes. Ignoring one of these would change answers, memory or what the server offers. */
export const REFUSED_FLAGS: Readonly<Record<string, string>> = Object.fromEntries([
  ...all(
    `experts are not moved while the engine runs; ${PLAN}`,
    'enable-eplb',
    'eplb-algorithm',
    'eplb-rebalance-num-iterations',
    'eplb-rebalance-layers-per-chunk',
    'eplb-min-rebalancing-utilization-threshold',
  ),
  ...all(
    'the load of experts is not recorded yet; leave it out',
    'expert-distribution-recorder-mode',
    'expert-distribution-recorder-buffer-size',
    'expert-balancedness-report-mode',
    'enable-expert-distribution-metrics',
  ),
  ...all('use --moe-a2a-backend deepep', 'enable-deepep-moe'),
  ...all('use --ep-size with the number of ranks that hold experts', 'enable-ep-moe'),
  ...all(
    'prefill and decode run in one engine; leave it out',
    'disaggregation-mode',
    'disaggregation-transfer-backend',
    'disaggregation-bootstrap-port',
    'disaggregation-ib-device',
    'num-reserved-decode-tokens',
  ),
  ...all('layers are not spread over ranks; use --tp-size', 'pp-size', 'pipeline-parallel-size'),
  ...all(
    'there is no speculative decoding yet; leave it out',
    'speculative-algorithm',
    'speculative-algo',
    'speculative-draft-model-path',
    'speculative-num-steps',
    'speculative-eagle-topk',
    'speculative-num-draft-tokens',
  ),
  ...all('the checkpoint says how its weights are quantised; leave it out', 'quantization'),
  ...all(
    'the KV cache is float32 on the CPU and has the precision of --dtype on a GPU; leave it out',
    'kv-cache-dtype',
  ),
  ...all('answers are not taken apart; leave it out', 'tool-call-parser', 'reasoning-parser'),
  ...all('put the template into tokenizer_config.json, or use /v1/completions', 'chat-template'),
  ...all('put tokenizer.json beside the weights', 'tokenizer-path'),
  ...all('requests need a tokenizer only for text; leave it out', 'skip-tokenizer-init'),
  ...all('adapters are not supported; merge them into the checkpoint', 'lora-paths', 'enable-lora'),
  ...all('name the directory of the revision you want', 'revision'),
])
