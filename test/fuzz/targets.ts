// What is fuzzed: each target turns a mutated input into files and reads them. `read` returns what happened: 'loads', or the code
// of the error a user would see. Anything else that it throws is a defect.
import { rmSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { SwitchyardError } from '../../src/config/errors.js'
import { readModelSpec } from '../../src/formats/hf/index.js'
import { openCheckpoint } from '../../src/formats/safetensors/index.js'
import { IncrementalDetokenizer, loadTokenizer } from '../../src/formats/tokenizer/index.js'

export function outcomeOf(run: () => void): string {
  try {
    run()
    return 'loads'
  } catch (error) {
    if (error instanceof SwitchyardError) return error.code
    throw error
  }
}

/** A safetensors file; every tensor is read when its header passes. */
export function readHeader(dir: string, file: Uint8Array): string {
  writeFileSync(join(dir, 'model.safetensors'), file)
  return outcomeOf(() => {
    const checkpoint = openCheckpoint(dir)
    for (const name of checkpoint.tensors.keys()) checkpoint.read(name)
  })
}

export function readConfig(dir: string, config: string, generation: string): string {
  writeFileSync(join(dir, 'config.json'), config)
  writeFileSync(join(dir, 'generation_config.json'), generation)
  return outcomeOf(() => void readModelSpec(dir))
}

/** The index of a directory whose shards are intact. */
export function readIndex(dir: string, index: string): string {
  const file = join(dir, 'model.safetensors.index.json')
  writeFileSync(file, index)
  const outcome = outcomeOf(() => void openCheckpoint(dir))
  rmSync(file)
  return outcome
}

/** Loads, encodes, streams back and renders a chat. */
export function readTokenizer(dir: string, tokenizer: string, config: string): string {
  writeFileSync(join(dir, 'tokenizer.json'), tokenizer)
  writeFileSync(join(dir, 'tokenizer_config.json'), config)
  return outcomeOf(() => {
    const loaded = loadTokenizer(dir)!
    const ids = loaded.encode('Hello wörld 42 🎉 </s>', { addSpecialTokens: true })
    const stream = new IncrementalDetokenizer(loaded)
    for (const id of [...ids, 0, 3, 5, 200, 1e6]) stream.push(id)
    stream.flush()
    loaded.decode(ids)
    if (loaded.hasChatTemplate) loaded.applyChatTemplate([{ role: 'user', content: 'Hello' }])
  })
}
