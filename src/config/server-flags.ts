// Flags of the HTTP server.
import type { FlagTable } from './flag-spec.js'

export const SERVER_FLAGS = {
  /** Address to listen on. */
  host: {
    name: 'host',
    type: 'string',
    default: '127.0.0.1',
    group: 'Server',
    help: 'address to listen on; 0.0.0.0 opens the server to other machines',
  },
  /** 0 takes any free port. */
  port: {
    name: 'port',
    type: 'integer',
    min: 0,
    max: 65_535,
    default: 30_000,
    env: 'PORT',
    group: 'Server',
    help: 'port to listen on; 0 takes any free one',
  },
  /** Clients must send it as a bearer token. */
  apiKey: {
    name: 'api-key',
    type: 'string',
    default: null,
    defaultHelp: 'none: anyone who reaches the port may ask',
    env: 'SWITCHYARD_API_KEY',
    group: 'Server',
    help: 'key that clients must send (Authorization: Bearer KEY)',
  },
  /** Least severe log lines that are written. */
  logLevel: {
    name: 'log-level',
    type: 'choice',
    choices: ['debug', 'info', 'warn', 'error', 'silent'],
    default: 'info',
    group: 'Server',
    help: 'least severe log lines to write to stderr',
  },
  /** Seconds that running requests get to finish after Ctrl-C or SIGTERM. */
  shutdownTimeout: {
    name: 'shutdown-timeout',
    type: 'number',
    min: 0,
    max: 86_400,
    default: 30,
    group: 'Server',
    help: 'seconds that running requests get to finish after Ctrl-C; a second Ctrl-C aborts them',
  },
  /** Largest request body, in bytes. */
  maxBodyBytes: {
    name: 'max-body-bytes',
    type: 'integer',
    min: 1024,
    max: 1 << 30,
    default: 16 << 20,
    group: 'Server',
    help: 'largest request body, in bytes',
  },
  /** Connections the server holds at once. */
  maxConnections: {
    name: 'max-connections',
    type: 'integer',
    min: 1,
    max: 1 << 20,
    default: 4096,
    group: 'Server',
    help: 'connections held at once; further ones are answered 503 and closed',
  },
  /** Requests that may wait to be run. */
  maxQueuedRequests: {
    name: 'max-queued-requests',
    type: 'integer',
    min: 1,
    max: 1 << 20,
    default: null,
    defaultHelp: 'no limit',
    group: 'Server',
    help: 'requests that may wait to be run; further ones are answered 503',
  },
  /** Events of one stream that may wait for a slow client. */
  maxStreamBacklog: {
    name: 'max-stream-backlog',
    type: 'integer',
    min: 16,
    max: 1 << 24,
    default: 4096,
    group: 'Server',
    help: 'tokens of one choice that may wait for a client that reads too slowly; then its request is aborted',
  },
  /** Seconds a client may leave its stream unread. */
  streamStallTimeout: {
    name: 'stream-stall-timeout',
    type: 'number',
    min: 0,
    max: 86_400,
    aboveMin: true,
    default: 60,
    group: 'Server',
    help: 'seconds a client may leave its stream unread before the connection is closed',
  },
} as const satisfies FlagTable
