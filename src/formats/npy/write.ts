// Writes NPY arrays, format version 1, little-endian, C order, data aligned to 64 bytes as NumPy does.

export type NpyWritable = Int32Array | Float32Array | Float64Array

/** The bytes of an NPY file. The values are row-major and their number is the product of the shape. */
export function npyBytes(shape: readonly number[], values: NpyWritable): Uint8Array {
  const dtype = values instanceof Int32Array ? '<i4' : values instanceof Float32Array ? '<f4' : '<f8'
  const sizes = shape.length === 1 ? `${shape[0]},` : shape.join(', ')
  const header = `{'descr': '${dtype}', 'fortran_order': False, 'shape': (${sizes}), }`
  const length = Math.ceil((10 + header.length + 1) / 64) * 64 - 10
  const out = new Uint8Array(10 + length + values.byteLength)
  out.set([0x93, 0x4e, 0x55, 0x4d, 0x50, 0x59, 1, 0, length & 255, length >> 8])
  out.set(new TextEncoder().encode(`${header.padEnd(length - 1)}\n`), 10)
  const data = new DataView(out.buffer, 10 + length)
  for (let i = 0; i < values.length; i++) {
    if (values instanceof Int32Array) data.setInt32(i * 4, values[i]!, true)
    else if (values instanceof Float32Array) data.setFloat32(i * 4, values[i]!, true)
    else data.setFloat64(i * 8, values[i]!, true)
  }
  return out
}
