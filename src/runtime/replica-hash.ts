// Which replica of an expert serves a token: a hash of what the token is (layer, expert, request, position), never of where
// it stands in the batch. So the choice is the same on every rank, in every chunking and after a retraction.
import { expertHash } from './mix-bits.js'

/**
 * Replica rank in [0, replicas) for the token at `position` of a request. `request` is any 32-bit word that stays with the
 * request.
 */
export function replicaOf(layer: number, expert: number, request: number, position: number, replicas: number): number {
  if (replicas < 2) return 0
  return expertHash(layer, expert, request, position) % replicas
}
