// Errors of requests and of an engine that cannot start or go on.
import { errorArea } from '../config/errors.js'

export class RequestError extends errorArea('Request', {
  SY_REQUEST_EMPTY: {
    status: 400,
    message: 'the prompt has no tokens',
    remedy: 'Send at least one token or a text that is not empty.',
  },
  SY_REQUEST_TOO_LONG: {
    status: 400,
    message:
      'the context length is {contextLength} tokens, but {promptTokens} tokens of prompt and {maxTokens} of output were asked for',
    remedy: 'Shorten the prompt, ask for fewer tokens, or start with a larger --context-length or --max-total-tokens.',
  },
  SY_REQUEST_BAD_TOKEN: {
    status: 400,
    message: 'token id {token} at place {index} is not in the vocabulary of {vocabSize}',
    remedy: 'Use ids from 0 to {vocabSize} - 1; the prompt was probably tokenized for another model.',
  },
  SY_REQUEST_BAD_PARAMETER: {
    status: 400,
    message: '{param} is {value}, but must be {expected}',
    remedy: 'Set {param} to {expected}.',
  },
  SY_REQUEST_DUPLICATE_ID: {
    status: 400,
    message: 'a request with id {id} is running',
    remedy: 'Use an id once at a time, or leave it out.',
  },
  SY_REQUEST_NO_SUCH_RANK: {
    status: 400,
    message: 'routed_dp_rank is {rank}, but there are {ranks} attention-DP ranks',
    remedy: 'Use a rank from 0 to {ranks} - 1, or leave it out.',
  },
}) {}

export class EngineError extends errorArea('Engine', {
  SY_ENGINE_CLOSING: {
    status: 503,
    message: 'the engine is shutting down and takes no new requests',
    remedy: 'Send the request again when the server is back.',
  },
  SY_ENGINE_NOT_ENOUGH_MEMORY: {
    status: 400,
    message: '{what} needs {needed} of memory, and {available} is left',
    remedy: '{remedy}',
  },
  SY_ENGINE_CONTEXT_TOO_LONG: {
    status: 400,
    message: '--context-length {asked} is longer than the {limit} positions of the model',
    remedy: 'Use --context-length {limit} or less.',
  },
  SY_ENGINE_NOT_FINITE: {
    status: 500,
    message: 'the model gave logits that are no finite numbers after {tokens} tokens',
    remedy: 'The weights hold NaN or infinite values, or overflow: check the checkpoint, or try --dtype float32.',
  },
  SY_ENGINE_ARCHITECTURE_ON_DEVICE: {
    status: 400,
    message: 'models of architecture {architecture} do not run with --device {device} yet',
    remedy: 'Use --device cpu.',
  },
  SY_ENGINE_GPU_TOO_OLD: {
    status: 400,
    message: 'GPU {ordinal} ({name}) has compute capability {capability}; kernels between ranks need 9.0',
    remedy: 'Use Hopper GPUs, one rank, or --device cpu.',
  },
  SY_ENGINE_NO_PEER_ACCESS: {
    status: 400,
    message: '{from} cannot reach the memory of {to}, which experts on several GPUs need',
    remedy: 'Use GPUs that are linked (switchyard doctor lists links), one rank, or --device cpu.',
  },
  SY_ENGINE_NOT_BUILT: {
    status: 400,
    message: 'the compiled rank worker is missing at {file}',
    remedy: 'Run npm run build first.',
  },
}) {}
