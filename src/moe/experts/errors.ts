// Errors of the stand-alone expert pieces: plans and layouts that do not fit what they are used with.
import { errorArea } from '../../config/errors.js'

export class ExpertLayoutError extends errorArea('Expert layout', {
  SY_EXPERTS_BAD_ID: {
    status: 500,
    message: 'token {token}, slot {slot} names expert {expert}, but this rank holds {experts}',
    remedy:
      'Ids here are local: 0 to the number of experts held, and -1 for none. Map physical ids to local ones first.',
  },
  SY_EXPERTS_BAD_ALIGNMENT: {
    status: 400,
    message: 'a row alignment of {alignment} cannot be used',
    remedy: 'Give a whole number of rows from 1 up: 128 suits most grouped GEMMs, 1 packs rows without padding.',
  },
  SY_EXPERTS_UNALIGNED: {
    status: 500,
    message: 'rows of expert {expert} begin at row {row}, which is not a multiple of the row alignment {alignment}',
    remedy: 'Make the layout and bind the grouped GEMM with the same row alignment.',
  },
  SY_EXPERTS_TOO_MANY_ROWS: {
    status: 500,
    message: '{rows} {what}, but there is memory for {limit}',
    remedy: 'Size the memory for the worst case (permutedRowsBound), or bring fewer tokens.',
  },
}) {}
