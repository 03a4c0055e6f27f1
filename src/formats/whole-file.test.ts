// Files appear whole or not at all, and what is no plain file is not replaced by one.
import {
  existsSync,
  lstatSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  statSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, describe, expect, it } from 'vitest'
import { writeSafetensors } from './safetensors/index.js'
import { writeAll, writeWholeFile } from './whole-file.js'

const temp = mkdtempSync(join(tmpdir(), 'switchyard-whole-'))
afterAll(() => rmSync(temp, { recursive: true, force: true }))

const text = (words: string) => (descriptor: number) => writeAll(descriptor, new TextEncoder().encode(words))

describe('a whole file', () => {
  it('replaces what is there', () => {
    const file = join(temp, 'a')
    writeWholeFile(file, text('a longer first text'))
    writeWholeFile(file, text('second'))
    expect(readFileSync(file, 'utf8')).toBe('second')
    expect(readdirSync(temp)).toEqual(['a'])
  })

  it('is not there when writing fails half way; an older one stays', () => {
    const fails = (descriptor: number) => {
      text('half')(descriptor)
      throw new Error('no room')
    }
    expect(() => writeWholeFile(join(temp, 'b'), fails)).toThrow('no room')
    expect(() => writeWholeFile(join(temp, 'a'), fails)).toThrow('no room')
    expect(readFileSync(join(temp, 'a'), 'utf8')).toBe('second')
    expect(readdirSync(temp)).toEqual(['a'])
  })

  it('goes through a link', () => {
    const link = join(temp, 'link')
    symlinkSync(join(temp, 'a'), link)
    writeWholeFile(link, text('third'))
    expect(lstatSync(link).isSymbolicLink()).toBe(true)
    expect(readFileSync(join(temp, 'a'), 'utf8')).toBe('third')
  })
})

describe('safetensors', () => {
  const f32 = (data: ArrayBufferView) => ({ dtype: 'F32', shape: [1], data })

  it('leave no cut file behind when the disk is full', () => {
    const file = join(temp, 'x.safetensors')
    const full = {
      byteLength: 4,
      byteOffset: 0,
      get buffer(): ArrayBuffer {
        throw Object.assign(new Error('no space left on device'), { code: 'ENOSPC' })
      },
    }
    const tensors = new Map([
      ['a', f32(Float32Array.of(1))],
      ['b', f32(full)],
    ])
    expect(() => writeSafetensors(file, tensors)).toThrow(
      expect.objectContaining({ code: 'SY_CHECKPOINT_WRITE', message: expect.stringContaining('ENOSPC') }),
    )
    expect(existsSync(file)).toBe(false)
    writeFileSync(file, 'older')
    expect(() => writeSafetensors(file, tensors)).toThrow()
    expect(readFileSync(file, 'utf8')).toBe('older')
  })

  it.skipIf(!existsSync('/dev/full'))('say so of a device that takes nothing', () => {
    const one = new Map([['a', f32(Float32Array.of(1))]])
    expect(() => writeSafetensors('/dev/full', one)).toThrow(
      expect.objectContaining({ code: 'SY_CHECKPOINT_WRITE', message: expect.stringContaining('ENOSPC') }),
    )
    expect(statSync('/dev/full').isCharacterDevice()).toBe(true)
  })
})
