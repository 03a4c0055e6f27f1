// Errors of a model's config.json and generation_config.json: which field, what was expected, what was found.
import { errorArea } from '../../config/errors.js'

export class ModelConfigError extends errorArea('ModelConfig', {
  SY_MODEL_CONFIG_MISSING: {
    status: 400,
    message: '{file}: expected the config.json of a Hugging Face checkpoint, found no such file',
    remedy: 'name the directory that holds config.json, the weights and tokenizer.json',
  },
  SY_MODEL_CONFIG_UNREADABLE: {
    status: 400,
    message: '{file}: expected a JSON object, found {found}',
    remedy: 'download the file again, or repair it',
  },
  SY_MODEL_ARCHITECTURE: {
    status: 400,
    message: '{file}: the architecture {found} is not supported; supported are {supported}',
    remedy: 'choose a checkpoint of a supported architecture',
  },
  SY_MODEL_CONFIG_FIELD: {
    status: 400,
    message: '{file}: {field}: expected {expected}, found {found}',
    remedy: 'correct the field in the file, or for one run with {override}',
  },
  SY_MODEL_GENERATION_UNREADABLE: {
    status: 400,
    message: '{file}: expected a JSON object, found {found}',
    remedy: 'download the file again, or delete it: it only holds defaults of sampling and more ids that end a text',
  },
  SY_MODEL_GENERATION_FIELD: {
    status: 400,
    message: '{file}: {field}: expected {expected}, found {found}',
    remedy: 'correct the field, or delete it: the file only holds defaults of sampling and more ids that end a text',
  },
  SY_MODEL_CONFIG_UNSUPPORTED: {
    status: 400,
    message: '{file}: {field} = {found} is not supported: {reason}',
    remedy:
      'choose a checkpoint without it; if the field does not describe these weights, set it aside with {override}',
  },
  SY_MODEL_CONFIG_UNKNOWN: {
    status: 400,
    message: '{file}: {architecture} has no meaning here for {count} of its fields: {fields}',
    remedy:
      'a field that changes the model would be ignored, so nothing was loaded; if it does not matter, set it aside with {override}',
  },
  SY_MODEL_QUANTIZATION: {
    status: 400,
    message: '{file}: weights quantised as {found} are not read yet: {reason}',
    remedy: 'use a checkpoint in bfloat16, float16, float32 or block FP8 (e4m3 with weight_scale_inv)',
  },
  SY_MODEL_OVERRIDE: {
    status: 400,
    message: '--json-model-override-args: expected a JSON object, found {found}',
    remedy: 'write it as in --json-model-override-args \'{"rope_scaling": null}\'',
  },
}) {}
