// Parallel sizes, topology and groups.
export { ParallelError } from './errors.js'
export { type ModelFacts, type ParallelFlags, type ResolvedParallel, resolveParallel } from './resolve.js'
export * from './topology.js'
