// What can be wrong with an HTTP request, or with the server at the moment it comes. Each becomes an OpenAI-shaped
// error body (openai/error-body.ts); what the engine itself refuses comes as the engine's own errors.
import { errorArea } from '../config/errors.js'

export class HttpError extends errorArea('Http', {
  SY_HTTP_INVALID_FIELD: {
    status: 400,
    message: 'the field {param} is not valid: {problem}',
    remedy: 'correct the field {param} of the request body',
  },
  SY_HTTP_INVALID_QUERY: {
    status: 400,
    message: '{param} in the address is {value}, but must be {expected}',
    remedy: 'set {param} to {expected}, or leave it out',
  },
  SY_HTTP_UNSUPPORTED_FIELD: {
    status: 400,
    message: '{param} is not supported: {reason}',
    remedy: 'leave {param} out of the request',
  },
  SY_HTTP_NOT_JSON: {
    status: 400,
    message: 'the request body is not valid JSON: {problem}',
    remedy: 'send one JSON object as the body',
  },
  SY_HTTP_CONTEXT_LENGTH: {
    status: 400,
    message:
      'the context of this model is {context} tokens, but the request needs {needed}: {prompt} of the prompt and {output} of the output',
    remedy: 'shorten the prompt or ask for fewer output tokens',
  },
  SY_HTTP_NO_TOKENIZER: {
    status: 400,
    message: 'the model {model} has no tokenizer, so it understands token ids only',
    remedy: 'send the prompt to /v1/completions as an array of token ids',
  },
  SY_HTTP_NO_CHAT_TEMPLATE: {
    status: 400,
    message: 'the model {model} has no chat template',
    remedy: 'use /v1/completions with the whole text as the prompt',
  },
  SY_HTTP_UNAUTHORIZED: {
    status: 401,
    message: 'the API key is missing or wrong',
    remedy: 'send the header Authorization: Bearer KEY with the key the server was started with',
  },
  SY_HTTP_UNKNOWN_MODEL: {
    status: 404,
    message: 'the model {model} is not served here',
    remedy: 'ask for {served}',
  },
  SY_HTTP_UNKNOWN_PATH: {
    status: 404,
    message: 'there is nothing at {path}',
    remedy: 'see GET /v1/models, POST /v1/completions, POST /v1/chat/completions and POST /generate',
  },
  SY_HTTP_NOT_OFFERED: {
    status: 501,
    message: 'the engine that runs here does not offer {path}',
    remedy: 'leave {path} out',
  },
  SY_HTTP_WRONG_METHOD: {
    status: 405,
    message: '{path} does not answer {method}',
    remedy: 'use {allowed}',
  },
  SY_HTTP_BODY_TOO_LARGE: {
    status: 413,
    message: 'the request body is larger than {limit} bytes',
    remedy: 'send a smaller body, or start the server with a larger --max-body-bytes',
  },
  SY_HTTP_CONTENT_TYPE: {
    status: 415,
    message: 'the content type {contentType} is not understood',
    remedy: 'send JSON with the header Content-Type: application/json',
  },
  SY_HTTP_CONTENT_ENCODING: {
    status: 415,
    message: 'the body is encoded as {encoding}, which is not understood',
    remedy: 'send the body as it is, without the header Content-Encoding',
  },
  SY_HTTP_MALFORMED: {
    status: 400,
    message: 'the HTTP request is malformed: {problem}',
    remedy: 'send a valid request line, Host header and body',
  },
  SY_HTTP_LOADING: {
    status: 503,
    message: 'the model is still loading',
    remedy: 'try again when /health answers 200',
  },
  SY_HTTP_DRAINING: {
    status: 503,
    message: 'the server is shutting down and takes no new requests',
    remedy: 'send the request to another server, or try again after the restart',
  },
  SY_HTTP_ABORTED: {
    status: 503,
    message: 'the request was ended before it was finished, because the server is shutting down',
    remedy: 'send the request again after the restart',
  },
  SY_HTTP_ENGINE_FAILED: {
    status: 503,
    message: 'the engine has failed: {reason}',
    remedy: 'restart the server; its log says what happened',
  },
  SY_HTTP_NO_TOKEN: {
    status: 503,
    message: 'the engine produced no token within {seconds} s',
    remedy: 'look at /server_info for a long queue, or restart the server',
  },
  SY_HTTP_QUEUE_FULL: {
    status: 503,
    message: '{waiting} requests wait to be run, and the queue holds no more than {limit}',
    remedy: 'send the request again later, or start the server with a larger --max-queued-requests',
  },
  SY_HTTP_SLOW_READER: {
    status: 503,
    message: 'the stream was ended: more than {limit} events of it waited to be read',
    remedy: 'read the stream as it comes, or start the server with a larger --max-stream-backlog',
  },
  SY_HTTP_STALLED: {
    status: 499,
    message: 'the client read nothing of its stream for {seconds} s',
    remedy: 'read the stream as it comes, or start the server with a larger --stream-stall-timeout',
  },
  SY_HTTP_TOO_MANY_CONNECTIONS: {
    status: 503,
    message: 'the server holds {limit} connections and takes no more',
    remedy: 'close connections that are not used, or start the server with a larger --max-connections',
  },
  SY_HTTP_CLIENT_GONE: {
    status: 499,
    message: 'the client closed the connection before the answer was complete',
    remedy: 'nothing to do: this is written to the log only',
  },
  SY_HTTP_INTERNAL: {
    status: 500,
    message: 'something went wrong inside the server (request {requestId})',
    remedy: 'look for the request id in the log of the server and report it as a bug',
  },
}) {}
