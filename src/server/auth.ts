// The API key check. Keys are compared by their hashes in constant time, so timing tells nothing about the key.
import { createHash, timingSafeEqual } from 'node:crypto'
import { HttpError } from './errors.js'

const digest = (text: string): Buffer => createHash('sha256').update(text).digest()

/** A check of the Authorization header against `apiKey`; without a key everyone may pass. @throws HttpError 401 */
export function keyCheck(apiKey: string | null): (authorization: string | undefined) => void {
  if (apiKey === null) return () => {}
  const expected = digest(apiKey)
  return authorization => {
    const given = /^Bearer +(.+)$/i.exec(authorization ?? '')?.[1]
    if (given === undefined || !timingSafeEqual(digest(given.trim()), expected)) {
      throw new HttpError('SY_HTTP_UNAUTHORIZED')
    }
  }
}
