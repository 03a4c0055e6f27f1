// Dynamic replica choice: every routed token picks a replica by a hash of what it is, never of where it stands in the batch.
// So the choice is the same on every rank, in every chunking and after a retraction. SGLang takes the row's index instead
// (or a random number), which changes with the batch: deliberately not followed. Also `fake`, for benchmarks.
import { philox, STREAM } from '../../runtime/random.js'

export { replicaOf as dynamicReplica } from '../../runtime/replica-hash.js'

/**
 * `fake`: router logits that ignore the token, uniform in [5, 10), so that experts are loaded evenly whatever the text;
 * replicas are then picked as `dynamic`. Results are meaningless text: for benchmarks only. Writes out[experts].
 */
export function fakeRouterLogits(layer: number, request: number, position: number, out: Float32Array): void {
  const words = new Uint32Array(4)
  for (let e = 0; e < out.length; e++) {
    if ((e & 3) === 0) philox(request, layer, e >>> 2, position, 0, STREAM.replicaChoice, words)
    out[e] = 5 + (5 * words[e & 3]!) / 4294967296
  }
}
