// What the server counts, for Prometheus: names after SGLang's and vLLM's, labels model_name and dp_rank.
export { Metrics } from './metrics.js'
export { IGNORANT_OBSERVER, type RequestObserver, type RequestWatch } from './observer.js'
