// Hugging Face's config.json and generation_config.json.
export { type GenerationDefaults, NO_GENERATION_DEFAULTS, readGenerationConfig } from './generation-config.js'
export { ModelConfigError } from './model-config-errors.js'
export { type ModelConfig, modelSpecOf, readModelSpec, SUPPORTED_ARCHITECTURES } from './read-model-spec.js'
