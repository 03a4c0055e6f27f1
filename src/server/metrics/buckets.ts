// A histogram that costs one binary search an observation. prom-client's own hashes its labels at every call, which is too
// much for once a token; it prints ours through `lines`.
export class Buckets {
  /** Upper bounds in ascending order, without +Inf. */
  readonly bounds: readonly number[]
  /** Observations of each bucket, not cumulative; the last one is above all bounds. */
  readonly counts: Float64Array
  sum = 0

  constructor(bounds: readonly number[]) {
    this.bounds = bounds
    this.counts = new Float64Array(bounds.length + 1)
  }

  observe(value: number, times = 1): void {
    let low = 0
    let high = this.bounds.length
    while (low < high) {
      const middle = (low + high) >> 1
      if (value <= this.bounds[middle]!) high = middle
      else low = middle + 1
    }
    this.counts[low]! += times
    this.sum += value * times
  }

  /** Samples of the text format: buckets (cumulative), sum and count. */
  lines(name: string, labels: string): string {
    let total = 0
    let text = ''
    this.counts.forEach((count, i) => {
      total += count
      text += `${name}_bucket{${labels},le="${i < this.bounds.length ? this.bounds[i] : '+Inf'}"} ${total}\n`
    })
    return `${text}${name}_sum{${labels}} ${this.sum}\n${name}_count{${labels}} ${total}\n`
  }
}

/** Seconds from request to first token, of whole requests and of waiting. */
export const LONG_SECONDS = [
  0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 320, 640,
] as const

/** Seconds between tokens. */
export const TOKEN_SECONDS = [
  0.0005, 0.001, 0.0025, 0.005, 0.01, 0.015, 0.02, 0.03, 0.04, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1, 2.5, 5, 10,
] as const

export const TOKEN_COUNTS = [
  1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 20_000, 50_000, 100_000,
] as const
