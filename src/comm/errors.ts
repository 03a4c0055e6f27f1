// Errors of collectives that are not disagreement (that one is RankError SY_RANK_DISAGREES).
import { errorArea } from '../config/errors.js'

export class CommError extends errorArea('Communication', {
  SY_COMM_TOO_LARGE: {
    status: 500,
    message: 'rank {rank}: {label} needs {needed} bytes a member, the group {group} was given {available}',
    remedy: 'This is a sizing bug: please report it with the flags you used.',
  },
}) {}

/** Misuse of an ExpertBuffer: found before anything is written where it does not belong. */
export class ExpertBufferError extends errorArea('Expert buffer', {
  SY_EP_BAD_CONFIG: {
    status: 400,
    message: 'the expert buffer cannot be built with {what} = {value}: it must be {rule}',
    remedy: 'Correct the flag that this comes from; `switchyard explain` shows the sizes that follow from the flags.',
  },
  SY_EP_BAD_EXPERT: {
    status: 500,
    message: 'token {token}, slot {slot} asks for physical expert {expert}, but there are {experts}',
    remedy: 'Physical expert ids run from 0, and -1 means none. If the ids come from Switchyard, please report this.',
  },
  SY_EP_NO_MODE: {
    status: 500,
    message: 'the expert buffer was built without {mode} mode, so it cannot {operation}',
    remedy: 'Build it with that mode: --deepep-mode auto has both.',
  },
  SY_EP_TOO_MANY_TOKENS: {
    status: 400,
    message: 'rank {rank} brings {tokens} tokens to a {mode} dispatch that holds {limit}',
    remedy:
      'Raise --deepep-num-max-dispatch-tokens-per-rank (low-latency) or --chunked-prefill-size (normal), or bring fewer tokens.',
  },
  SY_EP_RECEIVES_TOO_MUCH: {
    status: 500,
    message: 'rank {rank} would receive {rows} rows in {label}, but its buffer shows {limit}',
    remedy: 'Size the buffer (or the worst case asked for) for every rank sending all its tokens to one.',
  },
  SY_EP_TOO_MANY_RESULTS: {
    status: 500,
    message: 'rank {rank}: {label} would be result number {count} alive at once, and the expert buffer holds {limit}',
    remedy: 'Combine or release earlier results first.',
  },
  SY_EP_WRONG_ORDER: {
    status: 500,
    message: 'rank {rank}: {label} tried to {operation}, but the result is {state}',
    remedy: 'The order is: notify, send, receive, send the combine, receive it; each once.',
  },
  SY_EP_OVERLAP: {
    status: 500,
    message: 'rank {rank}: {label} began while {running} was still running',
    remedy: 'Run the halves of an operation to their ends before the next one begins; hooks may be kept for later.',
  },
  SY_EP_PEER_SILENT: {
    status: 500,
    message:
      'rank {rank} waited in vain on its GPU for {phase} of rank {peer} (place {place}, operation {epoch}, seen {seen})',
    remedy:
      'Look at what rank {peer} did last: its log, and its GPU in `nvidia-smi`. The rank that is named is the one that did not come.',
  },
  SY_EP_SHAPE_CHANGED: {
    status: 500,
    message: 'rank {rank}: {label} brings {what} {found}, but the expert buffer was built for {expected}',
    remedy: 'The shape of an expert buffer is fixed for its life; build another one for another shape.',
  },
}) {}
