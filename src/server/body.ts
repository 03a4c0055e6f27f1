// Reading a JSON body within limits. Bytes are counted as they come, so a lying Content-Length gains nothing.
import type { IncomingMessage } from 'node:http'
import { HttpError } from './errors.js'

/**
 * The JSON object in the body of `incoming`.
 * @param limit bytes
 * @throws HttpError 400, 413 or 415
 */
export async function readJsonObject(incoming: IncomingMessage, limit: number): Promise<Record<string, unknown>> {
  const contentType = incoming.headers['content-type']
  if (contentType !== undefined && !/^application\/([\w.-]+\+)?json\s*(;|$)/i.test(contentType)) {
    throw new HttpError('SY_HTTP_CONTENT_TYPE', { contentType: contentType.slice(0, 100) })
  }
  const encoding = incoming.headers['content-encoding'] ?? ''
  if (!/^\s*(identity)?\s*$/i.test(encoding)) {
    throw new HttpError('SY_HTTP_CONTENT_ENCODING', { encoding: encoding.slice(0, 100) })
  }
  const bytes = await readBytes(incoming, limit)
  const text = decode(bytes)
  let value: unknown
  try {
    value = JSON.parse(text)
  } catch (error) {
    const problem = text.trim() === '' ? 'it is empty' : (error as SyntaxError).message.slice(0, 200)
    throw new HttpError('SY_HTTP_NOT_JSON', { problem })
  }
  if (typeof value !== 'object' || value === null || Array.isArray(value)) {
    throw new HttpError('SY_HTTP_NOT_JSON', { problem: 'it is not an object' })
  }
  return value as Record<string, unknown>
}

/** UTF-8 without its byte order mark. Other bytes are refused: a prompt with replaced characters is not what was asked. */
function decode(bytes: Buffer): string {
  try {
    return new TextDecoder('utf-8', { fatal: true }).decode(bytes)
  } catch {
    throw new HttpError('SY_HTTP_NOT_JSON', { problem: 'it is not UTF-8' })
  }
}

function readBytes(incoming: IncomingMessage, limit: number): Promise<Buffer> {
  const tooLarge = () => new HttpError('SY_HTTP_BODY_TOO_LARGE', { limit })
  if (Number(incoming.headers['content-length'] ?? 0) > limit) return Promise.reject(tooLarge())
  return new Promise((resolve, reject) => {
    const chunks: Buffer[] = []
    let size = 0
    const settle = (act: () => void) => {
      incoming.off('data', onData).off('end', onEnd).off('error', onGone).off('close', onGone)
      act()
    }
    const onData = (chunk: Buffer) => {
      size += chunk.byteLength
      if (size <= limit) chunks.push(chunk)
      else settle(() => reject(tooLarge()))
    }
    const onEnd = () => settle(() => resolve(chunks.length === 1 ? chunks[0]! : Buffer.concat(chunks)))
    const onGone = () => settle(() => reject(new HttpError('SY_HTTP_CLIENT_GONE')))
    incoming.on('data', onData).on('end', onEnd).on('error', onGone).on('close', onGone)
  })
}
