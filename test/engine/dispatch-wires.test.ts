// Wires shorter than f32 on every fixture; see dispatch-wires.suite.ts.
import { dispatchWiresSuite } from './dispatch-wires.suite.js'

dispatchWiresSuite('mixtral')
dispatchWiresSuite('qwen2_moe')
dispatchWiresSuite('qwen3_moe')
dispatchWiresSuite('olmoe')
dispatchWiresSuite('gpt_oss')
dispatchWiresSuite('glm4_moe')
dispatchWiresSuite('deepseek_v2')
dispatchWiresSuite('deepseek_v3')
dispatchWiresSuite('deepseek_v3_yarn_noqlora')
