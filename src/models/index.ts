// Models: wiring and weight names.
export { buildDecoder, kvColumns, type ModelProgram } from './decoder.js'
export type { ProgramLimits, ProgramVariant, RankLayout } from './layout.js'
export { architectureOf, supportedArchitectures } from './registry.js'
