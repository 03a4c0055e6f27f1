// What can be wrong with a benchmark of a server.
import { errorArea } from '../../../config/errors.js'

export class BenchError extends errorArea('Bench', {
  SY_BENCH_NO_DATASET: {
    status: 400,
    message: 'the custom dataset has no file',
    remedy: 'name a file of JSON lines {"prompt": "…"} with --dataset-path',
  },
  SY_BENCH_BAD_DATASET: {
    status: 400,
    message: 'the dataset {file} cannot be used: {problem}',
    remedy: 'write one JSON object a line: {"prompt": "…", "output_tokens": 64}',
  },
  SY_BENCH_NO_SERVER: {
    status: 400,
    message: 'no OpenAI server answers at {url}: {reason}',
    remedy:
      'start one (switchyard serve models/demo), name it with --base-url, or measure the server alone with --null',
  },
  SY_BENCH_ALL_FAILED: {
    status: 500,
    message: 'none of {count} requests was answered; the first said: {reason}',
    remedy: 'try one request by hand, with the same body',
  },
}) {}
