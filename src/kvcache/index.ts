// The paged KV cache of a rank, and what it remembers of earlier requests.
export { PagePool } from './page-pool.js'
export { type PrefixNode, PrefixTree } from './prefix-tree.js'
