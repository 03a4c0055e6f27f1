// NPY arrays of numbers: read from any NumPy dtype, written little-endian.

export { NpyError } from './errors.js'
export { loadNpyBytes, loadNpyFile, type NpyArray } from './read.js'
export { type NpyWritable, npyBytes } from './write.js'
