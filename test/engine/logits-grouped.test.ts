// Logits of the models with grouped-query attention in every layout; see logits.suite.ts.
import { logitsSuite } from './logits.suite.js'

logitsSuite('mixtral', 8)
logitsSuite('qwen2_moe', 8)
logitsSuite('qwen3_moe', 8)
logitsSuite('olmoe', 16)
logitsSuite('gpt_oss', 8)
