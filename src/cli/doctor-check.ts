// One line of `switchyard doctor`.
export interface Check {
  readonly name: string
  readonly status: 'ok' | 'warn' | 'fail'
  readonly found: string
  /** What to do; empty when all is well. */
  readonly fix: string
}
