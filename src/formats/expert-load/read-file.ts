// Opens a file by what it holds, not by its name: torch (zip or pre-zip), NPY or JSON.

import { closeSync, openSync, readFileSync, readSync, statSync } from 'node:fs'
import { loadNpyFile } from '../npy/index.js'
import { reason } from '../torch/byte-source.js'
import { loadTorchFile } from '../torch/index.js'
import type { FlatArray } from './arrays.js'
import { ExpertLoadError } from './errors.js'

export type FileFormat = 'torch-zip' | 'torch-legacy' | 'npy' | 'json'

export interface OpenedFile {
  readonly format: FileFormat
  /** JSON objects and torch dicts as Map; arrays and tensors as they are. */
  readonly value: unknown
  /** The array, when the file is nothing else. */
  readonly array?: FlatArray
}

/** @throws ExpertLoadError, TorchFileError, NpyError */
export function openFile(path: string): OpenedFile {
  const head = readHead(path)
  if (head[0] === 0x93 && head[1] === 0x4e) {
    const array = loadNpyFile(path)
    return { format: 'npy', value: undefined, array }
  }
  if (looksLikeText(head)) return { format: 'json', value: parseJson(path, readText(path)) }
  return loadTorchFile(path)
}

function readHead(path: string): Uint8Array {
  try {
    // A pipe would block, and could not be read a second time.
    const found = statSync(path)
    if (!found.isFile() && !found.isDirectory()) throw new Error('it is not a regular file; save it to one first')
    const descriptor = openSync(path, 'r')
    try {
      const head = new Uint8Array(64)
      return head.subarray(0, readSync(descriptor, head, 0, 64, 0))
    } finally {
      closeSync(descriptor)
    }
  } catch (error) {
    throw new ExpertLoadError('SY_LOAD_UNREADABLE', { file: path, why: reason(error) })
  }
}

function looksLikeText(head: Uint8Array): boolean {
  const text = new TextDecoder('latin1').decode(head).replace(/^ï»¿/, '')
  return /^\s*[[{"\d-]/.test(text)
}

function readText(path: string): string {
  try {
    return readFileSync(path, 'utf8').replace(/^\uFEFF/, '')
  } catch (error) {
    throw new ExpertLoadError('SY_LOAD_UNREADABLE', { file: path, why: reason(error) })
  }
}

/** JSON with objects at the top as a Map, so that a key such as __proto__ is only a key. */
export function parseJson(file: string, text: string): unknown {
  let value: unknown
  try {
    value = JSON.parse(text)
  } catch (error) {
    const special = /[\s,[](-?(?:NaN|Infinity))\b/.exec(text)?.[1]
    const why = special === undefined ? (error as Error).message.replaceAll('\n', ' ') : `it holds ${special}`
    throw new ExpertLoadError('SY_LOAD_JSON', { file, why })
  }
  if (typeof value === 'object' && value !== null && !Array.isArray(value)) return new Map(Object.entries(value))
  return value
}

/** What a value is, in words, for refusals. */
export function describeValue(value: unknown): string {
  if (value instanceof Map) {
    const keys = [...value.keys()].slice(0, 4).map(String)
    return keys.length === 0 ? 'an empty dict' : `a dict with ${keys.join(', ')}${value.size > 4 ? ' …' : ''}`
  }
  if (Array.isArray(value)) return value.length === 0 ? 'an empty list' : 'a list'
  return value === null || value === undefined ? 'nothing' : `a ${typeof value}`
}
