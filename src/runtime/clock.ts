// Time is passed in, never read from the environment, so that the same code runs in virtual time.

/** Milliseconds since some fixed moment; never goes back. */
export interface Clock {
  now(): number
}

/** The clock of this process. */
export const systemClock: Clock = { now: () => performance.now() }
