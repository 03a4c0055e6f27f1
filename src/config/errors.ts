// The error base. Every error a user can meet has a stable code, named fields, a cause in one sentence and a remedy.
// Areas declare their codes once, as data (`errorArea`); docs/errors.md is generated from the same data.
// Not for broken invariants of our own: those throw `Unreachable`, which is a bug report, not advice.

/** What is fixed about a code: its HTTP status, its message with `{field}` holes, and what the user can do. */
export interface ErrorTemplate {
  /** HTTP status when the error reaches a client. */
  readonly status: number
  /** One sentence; `{name}` is replaced by the field of that name. */
  readonly message: string
  /** What to change so that it works; may have holes too. */
  readonly remedy: string
}

export type ErrorFields = Readonly<Record<string, unknown>>

/** Base of all errors meant for users. `message` already holds the filled-in sentence; `remedy` is kept apart. */
export class SwitchyardError extends Error {
  readonly code: string
  readonly status: number
  readonly fields: ErrorFields
  readonly remedy: string
  constructor(code: string, template: ErrorTemplate, fields: ErrorFields, options?: ErrorOptions) {
    super(fill(template.message, fields), options)
    this.name = new.target.name
    this.code = code
    this.status = template.status
    this.fields = fields
    this.remedy = fill(template.remedy, fields)
  }
}

/** A plan, state or argument that our own code should have made impossible. */
export class Unreachable extends Error {
  constructor(what: string) {
    super(`internal error: ${what}. This is a bug in Switchyard; please report it with the command you ran.`)
    this.name = 'Unreachable'
  }
}

/** One area's codes, for the documentation. */
export interface ErrorArea {
  readonly area: string
  readonly templates: Readonly<Record<string, ErrorTemplate>>
}

/**
 * Declares the codes of one area and returns the error class that carries them.
 *
 * @example
 *   export class CheckpointError extends errorArea('Checkpoint', { SY_CHECKPOINT_TRUNCATED: { status: 400, message, remedy } }) {}
 *   throw new CheckpointError('SY_CHECKPOINT_TRUNCATED', { file, needed, found })
 */
export function errorArea<Codes extends Record<string, ErrorTemplate>>(area: string, templates: Codes) {
  return class AreaError extends SwitchyardError {
    static readonly area = area
    static readonly templates: Readonly<Record<string, ErrorTemplate>> = templates
    constructor(code: keyof Codes & string, fields: ErrorFields = {}, options?: ErrorOptions) {
      super(code, templates[code]!, fields, options)
    }
  }
}

function fill(template: string, fields: ErrorFields): string {
  return template.replace(/\{(\w+)\}/g, (hole, name: string) => (name in fields ? show(fields[name]) : hole))
}

function show(value: unknown): string {
  if (typeof value === 'string') return value
  if (Array.isArray(value)) return `[${value.map(show).join(', ')}]`
  if (typeof value === 'object' && value !== null) return JSON.stringify(value)
  return String(value)
}
