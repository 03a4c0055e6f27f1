// Errors of models that the config reader understands but the engine cannot run yet.
import { errorArea } from '../config/errors.js'

export class ModelError extends errorArea('Model', {
  SY_MODEL_UNSUPPORTED: {
    status: 400,
    message: 'the engine cannot run {architecture} yet: {what}',
    remedy: 'Supported today: {supported}. FEATURES.md lists what comes next.',
  },
}) {}
