// attention_plan.cu and attention_prefill_sm90.cu: matrix instructions of a warpgroup.
import { describe } from 'vitest'
import { attentionCases } from './attention.suite.js'
import { promptCases } from './attention-prompts.js'

describe('prefill, warpgroup', () => {
  attentionCases(promptCases('warpgroup'))
})
