// Events: "the work queued so far has finished", on a device that runs ahead of its rank. On `cpu` nothing runs ahead, so
// every event is done when it is made. Not a synchronisation between ranks: an event belongs to one rank's device.
import type { Step } from '../runtime/wait.js'

export interface DeviceEvent {
  /** Looks again, without waiting. */
  readonly done: boolean
  /** Returns when the work has finished. */
  wait(): Step<void>
}

/** The event of work that has already finished. */
export const DONE: DeviceEvent = Object.freeze({ done: true, *wait(): Step<void> {} })
