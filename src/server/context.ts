// What a handler knows of the HTTP request it answers, beside the body: its id, its log line, its client.
import type { IncomingMessage, ServerResponse } from 'node:http'
import type { SwitchyardError } from '../config/errors.js'

export interface RequestContext {
  /** Sent back as x-request-id and written in the log. */
  readonly requestId: string
  /** Milliseconds of silence before a stream sends a comment. */
  readonly pingMs: number
  /** Milliseconds a client may leave a stream unread. */
  readonly stallMs: number
  /** Adds fields to the request's log line. */
  note(fields: Readonly<Record<string, unknown>>): void
  /** Writes down that the answer ended with `error`. */
  fail(error: SwitchyardError): void
  /** The answer goes on after the handler has returned: the log line waits for the returned call. */
  holdLog(): () => void
}

/** What Node gives beside a request: bodies are read from it and streams are written to it directly. */
export interface NodeBindings {
  readonly incoming: IncomingMessage
  readonly outgoing: ServerResponse
}
