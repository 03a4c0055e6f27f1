// The paged KV cache of a rank.
export { PagePool } from './page-pool.js'
