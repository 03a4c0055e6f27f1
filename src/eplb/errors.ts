// The errors of expert load balancing: sizes that cannot be served, counts that are not counts, placements that are not
// placements. Each says what was expected, what was found and what to change.
import { errorArea } from '../config/errors.js'

export class EplbError extends errorArea('Eplb', {
  SY_EPLB_COUNTS_EMPTY: {
    status: 400,
    message: 'The expert counts are empty: [{steps} steps][{layers} layers][{experts} experts].',
    remedy: 'Give at least one step, one layer and one expert; record some traffic before dumping.',
  },
  SY_EPLB_COUNTS_SIZE: {
    status: 400,
    message:
      'The expert counts hold {found} numbers, but {steps} steps of {layers} layers of {experts} experts are {expected}.',
    remedy: 'Give all rows the same length: [steps][layers][experts] or [layers][experts].',
  },
  SY_EPLB_COUNTS_RAGGED: {
    status: 400,
    message: 'The expert counts are ragged: {where} has {found} entries, the first of its kind has {expected}.',
    remedy: 'Give all rows the same length: [steps][layers][experts] or [layers][experts].',
  },
  SY_EPLB_COUNTS_VALUE: {
    status: 400,
    message:
      'The expert count of step {step}, layer {layer}, expert {expert} is {value}; a count is a finite number of at least 0.',
    remedy: 'Fix or drop that step of the recording.',
  },
  SY_EPLB_COUNTS_OVERFLOW: {
    status: 400,
    message:
      'The expert counts of layer {layer} sum to {sum}, beyond {limit}, where whole tokens can no longer be told apart.',
    remedy: 'Use fewer steps, or divide all counts by the same number.',
  },
  SY_EPLB_COUNTS_MISMATCH: {
    status: 400,
    message:
      'The counts have {countLayers} layers of {countExperts} experts, the placement {layers} layers of {logical} experts.',
    remedy: 'Use counts and a placement of the same model.',
  },
  SY_EPLB_CLUSTER: {
    status: 400,
    message: 'The cluster cannot be built: {what}.',
    remedy: '{fix}',
  },
  SY_EPLB_TOO_FEW_SLOTS: {
    status: 400,
    message: '{slots} live slots cannot hold {experts} logical experts.',
    remedy: 'Give at least {missing} more redundant experts, or more GPUs.',
  },
  SY_EPLB_SIZES: {
    status: 400,
    message: '{algorithm} cannot serve these sizes: {what}.',
    remedy: '{fix}, or use algorithm switchyard, which needs no divisibility.',
  },
  SY_EPLB_ALGORITHM: {
    status: 400,
    message: 'There is no balancing algorithm named {name}.',
    remedy: 'Use one of: {names}.',
  },
  SY_EPLB_PLACEMENT: {
    status: 400,
    message: 'The placement is not valid: {what}.',
    remedy: '{fix}',
  },
  SY_EPLB_OPTION: {
    status: 400,
    message: 'The option {option} is {value}; expected {expected}.',
    remedy: 'Give {option} {expected}.',
  },
}) {}
