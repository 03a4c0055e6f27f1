// Parallel sizes, topology and groups.
export * from './topology.js'
