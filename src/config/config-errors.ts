// Errors of flags, commands and ports: whatever is wrong with how Switchyard was asked to start.
// They are raised before a model is read or a rank starts, so nothing has to be undone.
import { errorArea } from './errors.js'

export class ConfigError extends errorArea('Config', {
  SY_CONFIG_UNKNOWN_FLAG: {
    status: 400,
    message: 'unknown flag {flag}',
    remedy: '{suggestion}',
  },
  SY_CONFIG_UNKNOWN_FLAGS: {
    status: 400,
    message: 'unknown flags {flags}',
    remedy: '{suggestions}',
  },
  SY_CONFIG_BAD_VALUE: {
    status: 400,
    message: '{flag} is {value}, but must be {expected}',
    remedy: 'set {flag} to {expected}{suggestion}',
  },
  SY_CONFIG_MISSING_VALUE: {
    status: 400,
    message: '{flag} has no value',
    remedy: 'write {flag} followed by {expected}',
  },
  SY_CONFIG_NOT_SUPPORTED: {
    status: 400,
    message: '{flag} {value} is not supported yet',
    remedy: '{instead}',
  },
  SY_CONFIG_CONFLICT: {
    status: 400,
    message: '{first} and {second} cannot be given together',
    remedy: 'keep one of the two',
  },
  SY_CONFIG_NO_MODEL: {
    status: 400,
    message: 'no model was named',
    remedy: 'name the directory of a Hugging Face checkpoint: {example}',
  },
  SY_CONFIG_MISSING_ARGUMENT: {
    status: 400,
    message: '{command} needs {argument}',
    remedy: '{example}',
  },
  SY_CONFIG_EXTRA_ARGUMENT: {
    status: 400,
    message: '{command} does not understand the argument {argument}',
    remedy: 'see {command} --help for what it takes',
  },
  SY_CONFIG_UNKNOWN_COMMAND: {
    status: 400,
    message: 'there is no command {command}',
    remedy: '{suggestion}',
  },
  SY_CONFIG_NO_TOKENIZER: {
    status: 400,
    message: '{model} has no tokenizer.json, so text cannot be turned into tokens',
    remedy: 'put the tokenizer.json of the model beside its weights, or pass token ids with --input-ids',
  },
  SY_CONFIG_PORT_IN_USE: {
    status: 400,
    message: 'port {port} on {host} is already in use',
    remedy: 'stop what listens there, or choose another port with --port (0 takes any free one)',
  },
  SY_CONFIG_CANNOT_LISTEN: {
    status: 400,
    message: 'cannot listen on {host} port {port}: {reason}',
    remedy: 'choose an address of this machine with --host and a port you may use with --port',
  },
  SY_CONFIG_CANNOT_WRITE: {
    status: 400,
    message: 'cannot write {file}: {reason}',
    remedy: 'name a file in a directory that exists and that you may write to',
  },
}) {}
