// Errors as OpenAI's clients expect them: {error: {message, type, param, code}}. The status decides which class the
// client raises; the code is OpenAI's own where clients look for one, else ours. Never a stack trace.
import { SwitchyardError } from '../../config/errors.js'
import { HttpError } from '../errors.js'

export interface ErrorBody {
  readonly error: {
    readonly message: string
    readonly type: string
    readonly param: string | null
    readonly code: string
  }
}

const TYPES: Readonly<Record<number, string>> = {
  401: 'authentication_error',
  403: 'permission_error',
  404: 'not_found_error',
  429: 'rate_limit_error',
}

/** Codes that client libraries compare with. */
const OPENAI_CODES: Readonly<Record<string, string>> = {
  SY_HTTP_CONTEXT_LENGTH: 'context_length_exceeded',
  SY_REQUEST_TOO_LONG: 'context_length_exceeded',
  SY_HTTP_UNKNOWN_MODEL: 'model_not_found',
  SY_HTTP_UNAUTHORIZED: 'invalid_api_key',
}

/** What a client may see of `error`. Anything that is not meant for users becomes SY_HTTP_INTERNAL. */
export function presentable(error: unknown, requestId: string): SwitchyardError {
  return error instanceof SwitchyardError ? error : new HttpError('SY_HTTP_INTERNAL', { requestId }, { cause: error })
}

export function errorBody(error: SwitchyardError): ErrorBody {
  const param = error.fields['param']
  return {
    error: {
      message: `${sentence(error.message)} ${sentence(error.remedy.charAt(0).toUpperCase() + error.remedy.slice(1))}`,
      type: TYPES[error.status] ?? (error.status >= 500 ? 'server_error' : 'invalid_request_error'),
      param: typeof param === 'string' ? param : null,
      code: OPENAI_CODES[error.code] ?? error.code,
    },
  }
}

const sentence = (text: string): string => (/[.!?]$/.test(text) ? text : `${text}.`)
