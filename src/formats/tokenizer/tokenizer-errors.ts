// Errors of tokenizer.json, tokenizer_config.json and chat templates.
import { errorArea } from '../../config/errors.js'

export class TokenizerError extends errorArea('Tokenizer', {
  SY_TOKENIZER_UNREADABLE: {
    status: 400,
    message: '{file}: expected {expected}, found {found}',
    remedy: 'download the file again; tokenizer.json must be in the format of the Hugging Face tokenizers library',
  },
  SY_TOKENIZER_FAILED: {
    status: 500,
    message: 'the tokenizer of this model could not {action}: {found}',
    remedy: 'its tokenizer.json is damaged or asks for something that is not supported; send token ids instead of text',
  },
  SY_TOKENIZER_NO_CHAT_TEMPLATE: {
    status: 400,
    message: 'this model has no chat template, so messages cannot be turned into a prompt',
    remedy: 'use /v1/completions with a plain prompt, or put a chat_template.jinja beside tokenizer.json',
  },
  SY_TOKENIZER_CHAT_TEMPLATE: {
    status: 400,
    message: 'the chat template ({file}) could not be rendered: {found}',
    remedy: 'check the roles and the order of the messages, and that the template is one that Jinja renders',
  },
  SY_TOKENIZER_CHAT_REFUSED: {
    status: 400,
    message: "the model's chat template refuses these messages: {reason}",
    remedy: 'change the messages as the reason says',
  },
}) {}
