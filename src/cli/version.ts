// The version of this package, from its package.json, wherever it is installed.
import { readFileSync } from 'node:fs'

interface PackageFile {
  readonly version: string
}

const file = new URL('../../package.json', import.meta.url)

export const version: string = (JSON.parse(readFileSync(file, 'utf8')) as PackageFile).version
