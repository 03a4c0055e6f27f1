// What flags are called elsewhere: short and long names of SGLang and vLLM that mean a flag of ours, for the remedy of
// "unknown flag". They are not accepted as flags: a command line says one thing in one way.

/** Name without dashes → ours, the likeliest first; the first one that the command has is suggested. */
const SYNONYMS: Readonly<Record<string, readonly string[]>> = {
  tp: ['tp-size', 'gpus'],
  'tp-size': ['gpus'],
  'tensor-parallel-size': ['tp-size', 'gpus'],
  ep: ['ep-size', 'gpus'],
  'ep-size': ['gpus'],
  'expert-parallel-size': ['ep-size', 'gpus'],
  'enable-expert-parallel': ['ep-size', 'gpus'],
  dp: ['attn-dp-size'],
  'data-parallel-size': ['attn-dp-size'],
  'num-redundant-experts': ['ep-num-redundant-experts', 'redundant'],
  'ep-num-redundant-experts': ['redundant'],
  'num-gpus': ['gpus'],
  'num-nodes': ['nodes', 'nnodes'],
  nnodes: ['nodes'],
  'n-group': ['groups'],
  'init-expert-location': ['current'],
  'eplb-algorithm': ['algorithm'],
  'all2all-backend': ['moe-a2a-backend'],
  'max-model-len': ['context-length'],
  'max-num-seqs': ['max-running-requests'],
  'max-num-batched-tokens': ['chunked-prefill-size'],
  'gpu-memory-utilization': ['mem-fraction-static'],
  'block-size': ['page-size'],
  'hf-overrides': ['json-model-override-args'],
  model: ['model-path'],
  seed: ['random-seed'],
  'no-enable-prefix-caching': ['disable-radix-cache'],
  'max-new-tokens': ['max-tokens'],
}

/** Our name for a flag of another engine, if the command has it. @param typed name without dashes */
export function synonymOf(typed: string, flags: readonly string[]): string | null {
  const names = Object.hasOwn(SYNONYMS, typed) ? SYNONYMS[typed]! : []
  return names.find(name => flags.includes(name)) ?? null
}
