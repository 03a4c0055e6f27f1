// Errors of expert-load dumps and placement files: what was expected there, what was found, what to change.

import { errorArea } from '../../config/errors.js'

export class ExpertLoadError extends errorArea('ExpertLoad', {
  SY_LOAD_UNREADABLE: {
    status: 400,
    message: 'cannot read or write {file}: {why}',
    remedy: 'Name a file (of a dump of several ranks: each file), and check its path and permissions.',
  },
  SY_LOAD_JSON: {
    status: 400,
    message: '{file} is not valid JSON: {why}',
    remedy: 'Write it with json.dump (no NaN or Infinity: replace them before), or pass the .pt or .npy file instead.',
  },
  SY_LOAD_KIND: {
    status: 400,
    message: '{file} holds {found}, not an expert load',
    remedy:
      'Pass a dump of SGLang\'s expert distribution recorder (.pt), JSON {"logical_count": [steps][layers][experts]} or plain arrays, or an .npy array.',
  },
  SY_LOAD_NO_PLACEMENT: {
    status: 400,
    message: '{file} holds {found}, not a placement',
    remedy:
      'Pass {"physical_to_logical_map": [layers][physical experts]} as .json, .pt or inline, or the word trivial.',
  },
  SY_LOAD_SHAPE: {
    status: 400,
    message: '{what} of {file} has shape [{shape}]; expected {expected}',
    remedy: 'Reshape it before saving: experts last, layers before them, steps (if any) first.',
  },
  SY_LOAD_RAGGED: {
    status: 400,
    message: '{what} of {file} is ragged: {where} has {found} entries, the first of its kind has {expected}',
    remedy: 'Give every step the same layers and every layer the same number of entries; pad dense layers with zeros.',
  },
  SY_LOAD_EMPTY: {
    status: 400,
    message: '{what} of {file} is empty',
    remedy:
      'Send requests between /start_expert_distribution_record and /dump_expert_distribution_record, then dump again.',
  },
  SY_LOAD_VALUE: {
    status: 400,
    message: '{where} of {file} is {value}; a count is a finite number of at least 0',
    remedy:
      'A negative or NaN count usually means a 32-bit counter that overflowed or memory that was never written: dump more often, or drop that step.',
  },
  SY_LOAD_OVERFLOW: {
    status: 400,
    message: 'the counts of {file} sum to {sum}, beyond 2^53, where whole tokens can no longer be told apart',
    remedy: 'Use fewer steps, or divide all counts by the same number before saving.',
  },
  SY_LOAD_RECORD: {
    status: 400,
    message: 'record {record} of {file}: {why}',
    remedy: 'Record again with --expert-distribution-recorder-mode stat, per_pass or per_token and pass the new dump.',
  },
  SY_LOAD_RANKS: {
    status: 400,
    message: '{file} does not belong with {other}: {why}',
    remedy: 'Pass the files of all ranks of one dump (same time in their names), each once.',
  },
  SY_LOAD_MAP: {
    status: 400,
    message: 'the placement in {file} is not usable: {why}',
    remedy: 'Give every layer the same number of physical experts, each a logical expert 0, 1, 2 …, none missing.',
  },
}) {}
