// Entry of the thread that encodes long texts: one tokenizer, one text at a time.
import { parentPort, workerData } from 'node:worker_threads'
import { SwitchyardError } from '../config/errors.js'
import { loadTokenizer } from '../formats/tokenizer/index.js'
import type { EncodeAnswer, EncodeTask } from './encode-aside.js'

const { directory } = workerData as { directory: string }
const tokenizer = loadTokenizer(directory)

parentPort!.on('message', ({ id, text, addSpecialTokens }: EncodeTask) => {
  let answer: EncodeAnswer
  try {
    const ids = Int32Array.from(tokenizer?.encode(text, { addSpecialTokens }) ?? [])
    answer = { id, ids }
  } catch (error) {
    const known = error instanceof SwitchyardError
    answer = {
      id,
      failure: {
        code: known ? error.code : 'SY_TOKENIZER_FAILED',
        status: known ? error.status : 500,
        message: error instanceof Error ? error.message : String(error),
        remedy: known ? error.remedy : 'This is a bug: please report it.',
      },
    }
  }
  parentPort!.postMessage(answer, 'ids' in answer ? [answer.ids.buffer as ArrayBuffer] : [])
})
