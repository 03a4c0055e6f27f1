// Errors of NPY files.

import { errorArea } from '../../config/errors.js'

export class NpyError extends errorArea('Npy', {
  SY_NPY_UNREADABLE: {
    status: 400,
    message: 'cannot read or write {file}: {why}',
    remedy: 'Check the path and the permissions of the file.',
  },
  SY_NPY_NOT_NPY: {
    status: 400,
    message: '{file} is not an NPY file: {why}',
    remedy: 'Save a single array with numpy.save(path, array); archives of numpy.savez have to be unpacked first.',
  },
  SY_NPY_DAMAGED: {
    status: 400,
    message: '{file} is damaged: {why}',
    remedy: 'Copy the file again from the machine that wrote it, or save it again with numpy.save.',
  },
  SY_NPY_DTYPE: {
    status: 400,
    message: '{file} holds elements of type {dtype}, which are not plain numbers',
    remedy: 'Convert first: numpy.save(path, array.astype("int64")).',
  },
  SY_NPY_TOO_LARGE: {
    status: 400,
    message: '{file} holds {elements} elements, more than the limit of {limit}',
    remedy: 'Cut the array, for example to its last 1000 steps: numpy.save(path, array[-1000:]).',
  },
  SY_NPY_INT64_RANGE: {
    status: 400,
    message: '{file} holds the integer {value}, beyond 2^53, where counts are no longer exact',
    remedy: 'Counts this large are usually uninitialised memory: record them again.',
  },
}) {}
