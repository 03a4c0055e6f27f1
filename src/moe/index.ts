// Experts over ranks: how tokens reach them and come back.
export { type DispatchFlags, type DispatchSizes, expertBufferConfig } from './dispatch/config.js'
export { LowLatencyDispatcher, NormalDispatcher } from './dispatch/token-dispatcher.js'
