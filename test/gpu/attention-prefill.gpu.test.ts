// attention_plan.cu and attention_prefill.cu: matrix instructions of a warp.
import { describe } from 'vitest'
import { attentionCases } from './attention.suite.js'
import { promptCases } from './attention-prompts.js'

describe('prefill, warp', () => {
  attentionCases(promptCases('warp'))
})
