// Ops in plain TypeScript: what every kernel means, in double precision, one row at a time. Used by tests as a second
// opinion and, loudly, where no native kernels can be built. Clear before fast.
import type { Ops } from '../ops.js'
import { attention } from './reference/attention.js'
import {
  add,
  addRmsNorm,
  copy,
  gatedActivation,
  gatherRows,
  rmsNorm,
  rope,
  sigmoidScale,
  storeKv,
  sumAddRmsNorm,
} from './reference/elementwise.js'
import { embed, headLinear, linear } from './reference/linear.js'
import { experts, router } from './reference/moe.js'
import { sample } from './reference/sample.js'

export const referenceOps: Ops = Object.freeze({
  name: 'reference',
  embed,
  rmsNorm,
  addRmsNorm,
  sumAddRmsNorm,
  add,
  copy,
  gatherRows,
  linear,
  headLinear,
  rope,
  storeKv,
  attention,
  router,
  gatedActivation,
  sigmoidScale,
  experts,
  sample,
})
