// Errors of ranks that cannot go on: they disagree, stall, or one of them is gone.
import { errorArea } from '../config/errors.js'

export class RankError extends errorArea('Rank', {
  SY_RANK_ABORTED: {
    status: 503,
    message: 'rank {rank} stopped because the node gave up: {reason}',
    remedy: 'Look at the first error reported; this one only follows from it.',
  },
  SY_RANK_DIED: {
    status: 503,
    message: 'rank {rank} is gone ({how}) in step {step}, {where}',
    remedy: 'Start the server again; if it repeats, run with --log-level debug and report the last lines.',
  },
  SY_RANK_STALLED: {
    status: 503,
    message: 'rank {rank} has not moved for {seconds} s in step {step}, {where}{waiting}',
    remedy:
      'The operation may be slower than --watchdog-timeout or --dist-timeout allow (raise them), or the machine is out of memory or cores.',
  },
  SY_RANK_STUCK: {
    status: 503,
    message: 'rank {rank} cannot be stopped: it is in native code that does not return, in step {step}, {where}{first}',
    remedy:
      'End the process with SIGKILL (the command line does it by itself). If it repeats, report it with the flags you used.',
  },
  SY_RANK_DISAGREES: {
    status: 503,
    message: 'ranks disagree in {collective}{where}: {field} is {values}',
    remedy: 'All ranks must run the same version with the same flags; if they do, this is a bug: please report it.',
  },
  SY_RANK_FAILED: {
    status: 503,
    message: 'rank {rank} failed in step {step}, {where}: {cause}',
    remedy: 'If the cause names something you can change, change it; else report it with the flags you used.',
  },
}) {}
