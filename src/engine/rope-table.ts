// Tables of cosines and sines. Angles are rounded to f32 like the reference implementations', whose frequencies and
// products are f32: at position 100,000 the difference would be visible otherwise.
import type { RopeTableSpec } from '../program/index.js'

/** f32 [positions, width]: cosines of the width/2 pairs, then their sines, times the attention factor. */
export function fillRopeTable(spec: RopeTableSpec, table: Float32Array): void {
  const half = spec.width / 2
  const frequencies = Float32Array.from(spec.inverseFrequencies)
  for (let position = 0; position < spec.positions; position++) {
    const row = position * spec.width
    for (let i = 0; i < half; i++) {
      const angle = Math.fround(position * frequencies[i]!)
      table[row + i] = Math.fround(Math.cos(angle)) * spec.attentionFactor
      table[row + half + i] = Math.fround(Math.sin(angle)) * spec.attentionFactor
    }
  }
}
