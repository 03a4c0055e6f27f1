// Errors of boundaries between stages: found while a program is built, never while it runs.
import { errorArea } from '../../config/errors.js'

export class BoundaryError extends errorArea('Boundary', {
  SY_BOUNDARY_UNDEFINED: {
    status: 500,
    message: 'no move is defined from rows sharded over {from} (owing a sum over {owed}) to rows sharded over {to}',
    remedy: 'Choose other parallel sizes; `switchyard explain` shows which layouts each stage needs.',
  },
}) {}
