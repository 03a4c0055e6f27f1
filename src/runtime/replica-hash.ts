// Which replica of an expert serves a token: a hash of what the token is (layer, expert, request, position), never of where
// it stands in the batch. So the choice is the same on every rank, in every chunking and after a retraction.

/** Finaliser of MurmurHash3 (Appleby): every input bit reaches every output bit. */
function mix(h: number): number {
  h = Math.imul(h ^ (h >>> 16), 0x85ebca6b)
  h = Math.imul(h ^ (h >>> 13), 0xc2b2ae35)
  return (h ^ (h >>> 16)) >>> 0
}

/**
 * Replica rank in [0, replicas) for the token at `position` of a request. `request` is any 32-bit word that stays with the
 * request.
 */
export function replicaOf(layer: number, expert: number, request: number, position: number, replicas: number): number {
  if (replicas < 2) return 0
  const token = mix(mix(request) ^ Math.imul(position, 0x9e3779b1))
  return mix(token ^ mix(Math.imul(layer, 0x27d4eb2f) + expert)) % replicas
}
