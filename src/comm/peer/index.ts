// Expert parallelism over peer-mapped memory of GPUs.

export { checkPeerConfig, lendSignals, PeerExpertBuffer } from './peer-expert-buffer.js'
export * from './peer-rank.js'
export { AREAS, type Area, INFO, layOutRegion, MAX_PEERS, type Region } from './region.js'
