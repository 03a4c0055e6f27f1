// Models: wiring and weight names.
export { buildDecoder, kvColumns, type ModelProgram, type ProgramLimits } from './decoder.js'
export { ModelError } from './errors.js'
export { architectureOf, supportedArchitectures } from './registry.js'
