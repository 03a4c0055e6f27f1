// Text to token ids without holding anyone up: short texts at once, long ones in another thread where the engine has one.
import type { GenerationEngine } from '../engine/request.js'
import { HttpError } from './errors.js'

/** UTF-16 units above which a text goes to another thread: about 5 ms of encoding. */
const LONG = 8192

/** @param param field to name when the model has no tokenizer */
export async function encodeText(
  engine: GenerationEngine,
  text: string,
  options: { readonly addSpecialTokens: boolean },
  param: string,
): Promise<number[]> {
  const { tokenizer } = engine
  if (tokenizer === null) throw new HttpError('SY_HTTP_NO_TOKENIZER', { model: engine.modelName, param })
  if (text.length > LONG && engine.encodeAside) return engine.encodeAside(text, options)
  return tokenizer.encode(text, options)
}
