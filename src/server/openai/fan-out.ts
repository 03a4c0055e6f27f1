// From prompts to engine requests: `n` choices of each prompt, in OpenAI's order (all choices of the first prompt first).
import type { GenerationRequest } from '../../engine/request.js'

/** The engine requests of one HTTP request. */
export interface Job {
  readonly requests: readonly GenerationRequest[]
  /** Choices of one prompt: request i continues prompt floor(i / choices). */
  readonly choices: number
}

/** A seed names one choice; choice i of a seeded request has seed + i, so that choices differ and can be made again. */
export function fanOut(prompts: readonly GenerationRequest[], choices: number): Job {
  const requests = prompts.flatMap(prompt =>
    Array.from({ length: choices }, (_, i): GenerationRequest => {
      if (i === 0) return prompt
      const { seed } = prompt.sampling
      return {
        ...prompt,
        ...(prompt.id === undefined ? {} : { id: `${prompt.id}.${i}` }),
        sampling: { ...prompt.sampling, seed: seed === null ? null : BigInt.asUintN(64, seed + BigInt(i)) },
      }
    }),
  )
  return { requests, choices }
}
