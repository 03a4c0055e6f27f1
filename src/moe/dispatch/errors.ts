// Errors of the flags of an all-to-all: found before any rank starts, with the numbers that would work.
import { errorArea } from '../../config/errors.js'

export class DispatchError extends errorArea('Dispatch', {
  SY_DISPATCH_TOO_FEW_SLOTS: {
    status: 400,
    message:
      'a rank may bring {tokens} tokens to a step ({arithmetic}), but --deepep-mode low_latency has {slots} slots a rank',
    remedy: '{remedy}',
  },
  SY_DISPATCH_BAD_CONFIG: {
    status: 400,
    message: '--deepep-config: {what}',
    remedy: '{remedy}',
  },
}) {}
