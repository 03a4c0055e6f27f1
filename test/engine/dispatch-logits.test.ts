// Logits of the fixtures through an all-to-all; see dispatch-logits.suite.ts.
import { dispatchLogitsSuite } from './dispatch-logits.suite.js'

dispatchLogitsSuite('mixtral', 8)
dispatchLogitsSuite('qwen2_moe', 8)
dispatchLogitsSuite('qwen3_moe', 8)
dispatchLogitsSuite('olmoe', 16)
dispatchLogitsSuite('gpt_oss', 8)
dispatchLogitsSuite('glm4_moe', 16)
dispatchLogitsSuite('deepseek_v2', 16)
dispatchLogitsSuite('deepseek_v3', 16)
dispatchLogitsSuite('deepseek_v3_yarn_noqlora', 16)
