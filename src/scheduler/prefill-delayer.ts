// Aligns prefills over attention-DP ranks: a step in which one rank prefills is slow for all, so ranks that have prompts
// wait a little for the others to have some too (source: SGLang managers/prefill_delayer.py).
//
// Bounds: a prompt waits at most `maxPasses` steps; a rank with nothing to decode never waits; and after a wait that was
// in vain nobody waits again until the ranks have once agreed (all with prompts, or none), so that lasting imbalance
// costs one wait and not one after every prefill (the feedback loop of SGLang's #35241).

export type DelayOutcome = 'no_wait' | 'delay' | 'wait_success' | 'wait_timeout'

export class PrefillDelayer {
  readonly #maxPasses: number
  #waited = 0
  #gaveUp = false
  readonly outcomes: Record<DelayOutcome, number> = { no_wait: 0, delay: 0, wait_success: 0, wait_timeout: 0 }

  /** @param maxPasses 0: never waits */
  constructor(maxPasses: number) {
    this.#maxPasses = maxPasses
  }

  /**
   * @param prefillable which DP ranks had prompts at the last vote
   * @returns whether prompts may go into this step
   */
  mayPrefill(hasPrefill: boolean, hasDecode: boolean, prefillable: readonly boolean[]): boolean {
    const some = prefillable.some(Boolean)
    const agreed = !some || prefillable.every(Boolean)
    if (agreed) this.#gaveUp = false
    if (!hasPrefill) {
      this.#waited = 0
      return true
    }
    const outcome = this.#decide(hasDecode, agreed)
    this.outcomes[outcome]++
    this.#waited = outcome === 'delay' ? this.#waited + 1 : 0
    if (outcome === 'wait_timeout') this.#gaveUp = true
    return outcome !== 'delay'
  }

  #decide(hasDecode: boolean, agreed: boolean): DelayOutcome {
    if (agreed) return this.#waited > 0 ? 'wait_success' : 'no_wait'
    if (!hasDecode || this.#gaveUp || this.#maxPasses === 0) return 'no_wait'
    return this.#waited >= this.#maxPasses ? 'wait_timeout' : 'delay'
  }
}
