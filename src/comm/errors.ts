// Errors of collectives that are not disagreement (that one is RankError SY_RANK_DISAGREES).
import { errorArea } from '../config/errors.js'

export class CommError extends errorArea('Communication', {
  SY_COMM_TOO_LARGE: {
    status: 500,
    message: 'rank {rank}: {label} needs {needed} bytes a member, the group {group} was given {available}',
    remedy: 'This is a sizing bug: please report it with the flags you used.',
  },
}) {}
