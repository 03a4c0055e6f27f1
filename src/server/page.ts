// GET /: the small page to try the model from a browser. One file without outside resources, read at the first request.
import { readFile } from 'node:fs/promises'

const PAGE = new URL('../../web/index.html', import.meta.url)

const HEADERS = {
  'content-type': 'text/html; charset=utf-8',
  'cache-control': 'no-cache',
  'content-security-policy':
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
  'referrer-policy': 'no-referrer',
} as const

export const page = async (): Promise<Response> => new Response(await readFile(PAGE, 'utf8'), { headers: HEADERS })
