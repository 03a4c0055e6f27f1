// Reading a JSON body within limits. Bytes are counted as they come, so a lying Content-Length gains nothing.
import { HttpError } from './errors.js'

/**
 * The JSON object in the body of `request`.
 * @param limit bytes
 * @throws HttpError 400, 413 or 415
 */
export async function readJsonObject(request: Request, limit: number): Promise<Record<string, unknown>> {
  const contentType = request.headers.get('content-type')
  if (contentType !== null && !/^application\/([\w.-]+\+)?json\s*(;|$)/i.test(contentType)) {
    throw new HttpError('SY_HTTP_CONTENT_TYPE', { contentType: contentType.slice(0, 100) })
  }
  const text = new TextDecoder().decode(await readBytes(request, limit))
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

async function readBytes(request: Request, limit: number): Promise<Uint8Array> {
  if (Number(request.headers.get('content-length') ?? 0) > limit)
    throw new HttpError('SY_HTTP_BODY_TOO_LARGE', { limit })
  const chunks: Uint8Array[] = []
  let size = 0
  if (request.body !== null) {
    for await (const chunk of request.body as unknown as AsyncIterable<Uint8Array>) {
      size += chunk.byteLength
      if (size > limit) throw new HttpError('SY_HTTP_BODY_TOO_LARGE', { limit })
      chunks.push(chunk)
    }
  }
  return chunks.length === 1 ? chunks[0]! : Buffer.concat(chunks)
}
