// Experts over ranks: how tokens reach them and come back.
export {
  checkSlots,
  type DispatchFlags,
  type DispatchSizes,
  dispatchNotes,
  expertBufferConfig,
} from './dispatch/config.js'
export { DispatchError } from './dispatch/errors.js'
export { LowLatencyDispatcher, NormalDispatcher } from './dispatch/token-dispatcher.js'
