// Logits of DeepSeek and GLM in every layout; see logits.suite.ts.
import { logitsSuite } from './logits.suite.js'

logitsSuite('deepseek_v2', 16)
logitsSuite('deepseek_v3', 16)
logitsSuite('deepseek_v3_yarn_noqlora', 16)
logitsSuite('glm4_moe', 16)
