import { mkdirSync, mkdtempSync, readdirSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterEach, beforeEach, describe, expect, test } from 'vitest'
import { CompileCache, cacheFolder, cacheKey, collectSources } from './compile-cache.js'

const reader = (files: Record<string, string>) => (name: string) => {
  const text = files[name]
  if (text === undefined) throw new Error(`no ${name}`)
  return text
}

describe('sources', () => {
  test('a file brings what it includes, each once, also in rings', () => {
    const read = reader({
      'a.cu': '#include "b.cuh"\n  #  include "c.cuh"\n// #include "in-a-comment.cuh"\n#include <stdint.h>\nint a;',
      'b.cuh': '#include "c.cuh"\nint b;',
      'c.cuh': '#include "b.cuh"\nint c;',
    })
    expect(collectSources('a.cu', read).map(file => file.name)).toEqual(['a.cu', 'b.cuh', 'c.cuh'])
  })

  test('a missing include is an error', () => {
    expect(() => collectSources('a.cu', reader({ 'a.cu': '#include "gone.cuh"' }))).toThrow('no gone.cuh')
  })
})

describe('keys', () => {
  const source = [{ name: 'a.cu', text: 'int a;' }]
  const key = cacheKey(source, ['-O', '-DX=1'], 'nvrtc 13.0')

  test('the same compilation has the same key', () => {
    expect(cacheKey([{ name: 'a.cu', text: 'int a;' }], ['-O', '-DX=1'], 'nvrtc 13.0')).toBe(key)
  })

  test.each([
    ['text', [{ name: 'a.cu', text: 'int b;' }], ['-O', '-DX=1'], 'nvrtc 13.0'],
    ['name', [{ name: 'b.cu', text: 'int a;' }], ['-O', '-DX=1'], 'nvrtc 13.0'],
    ['an include', [...source, { name: 'b.cuh', text: '' }], ['-O', '-DX=1'], 'nvrtc 13.0'],
    ['options', source, ['-O', '-DX=2'], 'nvrtc 13.0'],
    ['where options part', source, ['-O-DX=1'], 'nvrtc 13.0'],
    ['compiler', source, ['-O', '-DX=1'], 'nvrtc 13.1'],
  ])('another %s gives another key', (_, sources, options, compiler) => {
    expect(cacheKey(sources, options, compiler)).not.toBe(key)
  })
})

test('the folder follows the environment', () => {
  expect(cacheFolder({ SWITCHYARD_CACHE_DIR: '/a', XDG_CACHE_HOME: '/b' })).toBe('/a/cuda')
  expect(cacheFolder({ XDG_CACHE_HOME: '/b' })).toBe('/b/switchyard/cuda')
  expect(cacheFolder({})).toMatch(/\.cache\/switchyard\/cuda$/)
})

describe('on disk', () => {
  let folder: string
  beforeEach(() => {
    folder = mkdtempSync(join(tmpdir(), 'switchyard-cache-'))
  })
  afterEach(() => rmSync(folder, { recursive: true }))

  test('compiles once, and leaves whole files only', () => {
    const cache = new CompileCache(join(folder, 'new', 'cuda'))
    let compilations = 0
    const compile = () => {
      compilations++
      return new Uint8Array([1, 2, 3])
    }
    expect([...cache.get('norm-sm_90a', 'k'.repeat(64), compile)]).toEqual([1, 2, 3])
    expect([...cache.get('norm-sm_90a', 'k'.repeat(64), compile)]).toEqual([1, 2, 3])
    expect([...cache.get('norm-sm_90a', 'j'.repeat(64), compile)]).toEqual([1, 2, 3])
    expect(compilations).toBe(2)
    expect(readdirSync(cache.folder).every(name => name.endsWith('.cubin'))).toBe(true)
  })

  test('an empty file, as a crash might leave, is compiled anew', () => {
    const cache = new CompileCache(folder)
    writeFileSync(join(folder, `x-${'k'.repeat(32)}.cubin`), '')
    expect([...cache.get('x', 'k'.repeat(64), () => new Uint8Array([7]))]).toEqual([7])
    expect([...cache.get('x', 'k'.repeat(64), () => new Uint8Array([8]))]).toEqual([7])
  })

  test('a folder that cannot be used only costs time', () => {
    writeFileSync(join(folder, 'file'), '')
    const cache = new CompileCache(join(folder, 'file', 'cuda'))
    expect([...cache.get('x', 'k'.repeat(64), () => new Uint8Array([7]))]).toEqual([7])
    // A folder in a file's place, too.
    mkdirSync(join(folder, `y-${'k'.repeat(32)}.cubin`))
    expect([...new CompileCache(folder).get('y', 'k'.repeat(64), () => new Uint8Array([9]))]).toEqual([9])
  })

  test('what compile throws comes through and leaves nothing', () => {
    const cache = new CompileCache(folder)
    const fail = () => {
      throw new Error('does not compile')
    }
    expect(() => cache.get('x', 'k'.repeat(64), fail)).toThrow('does not compile')
    expect(readdirSync(folder)).toEqual([])
  })
})
