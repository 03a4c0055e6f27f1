// The installed command as a user runs it: real processes, the demo model and a fixture, stdout and exit codes.
import { type ChildProcess, spawn } from 'node:child_process'
import { mkdtempSync, readFileSync, rmSync } from 'node:fs'
import { createServer } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import OpenAI from 'openai'
import { afterAll, describe, expect, it } from 'vitest'
import { openCheckpoint } from '../src/formats/safetensors/index.js'

const root = fileURLToPath(new URL('..', import.meta.url))
const demo = join(root, 'models/demo')
const fixture = join(root, 'test/fixtures/checkpoints/qwen3_moe')
const temp = mkdtempSync(join(tmpdir(), 'switchyard-cli-'))
afterAll(() => rmSync(temp, { recursive: true, force: true }))

interface Ended {
  readonly code: number | null
  readonly stdout: string
  readonly stderr: string
}

interface Running {
  readonly child: ChildProcess
  readonly ended: Promise<Ended>
  /** Text printed so far. */
  readonly printed: () => string
}

function start(args: readonly string[], env: Record<string, string> = {}): Running {
  const child = spawn(process.execPath, ['bin/switchyard.js', ...args], {
    cwd: root,
    env: { ...process.env, NO_COLOR: '1', ...env },
  })
  let stdout = ''
  let stderr = ''
  child.stdout.on('data', (data: Buffer) => {
    stdout += data.toString()
  })
  child.stderr.on('data', (data: Buffer) => {
    stderr += data.toString()
  })
  const ended = new Promise<Ended>(resolve => child.on('close', code => resolve({ code, stdout, stderr })))
  return { child, ended, printed: () => stdout }
}

const at = (...args: string[]) => start(args).ended

describe('switchyard', () => {
  it('generate continues the demo prompt as the reference does, greedily, and prints only JSON', async () => {
    const [reference] = JSON.parse(readFileSync(join(demo, 'reference.json'), 'utf8')) as {
      prompt: string
      ids: number[]
      greedy: number[]
    }[]
    const { code, stdout, stderr } = await at(
      'generate',
      demo,
      '--prompt',
      reference!.prompt,
      '--dtype',
      'float32',
      '--max-tokens',
      '16',
      '--json',
    )
    expect(code, stderr).toBe(0)
    const report = JSON.parse(stdout)
    expect(Object.keys(report)).toEqual(['text', 'output_ids', 'finish_reason', 'usage', 'timings'])
    expect(report.output_ids).toEqual(reference!.greedy.slice(0, 16))
    expect(report.text).toMatch(/^ there was a little village/)
    expect(report.finish_reason).toBe('length')
    expect(report.usage).toMatchObject({ prompt_tokens: reference!.ids.length, completion_tokens: 16 })
  })

  it('generate prints text as it comes, and the seed decides sampled text', async () => {
    const args = [
      'generate',
      demo,
      '--prompt',
      'Once upon',
      '--max-tokens',
      '12',
      '--temperature',
      '0.9',
      '--seed',
      '7',
    ]
    const [first, second, other] = await Promise.all([at(...args), at(...args), at(...args.slice(0, -1), '8')])
    expect(first.code, first.stderr).toBe(0)
    expect(first.stdout.trim().length).toBeGreaterThan(0)
    expect(second.stdout).toBe(first.stdout)
    expect(other!.stdout).not.toBe(first.stdout)
    expect(first.stderr).toMatch(/\d+ \+ 12 tokens/)
  })

  it('generate gives no text without a tokenizer', async () => {
    const { code, stdout, stderr } = await at(
      'generate',
      fixture,
      '--input-ids',
      '5,6,7',
      '--max-tokens',
      '4',
      '--ignore-eos',
      '--json',
    )
    expect(code, stderr).toBe(0)
    const report = JSON.parse(stdout)
    expect(report.text).toBeNull()
    expect(report.output_ids).toHaveLength(4)
    const text = await at('generate', fixture, '--prompt', 'hello')
    expect([text.code, text.stdout]).toEqual([2, ''])
    expect(text.stderr).toMatch(/error SY_CONFIG_NO_TOKENIZER: .*\nfix: .*--input-ids/)
  })

  it('logits writes one row a token', async () => {
    const out = join(temp, 'model.safetensors')
    const { code, stderr } = await at('logits', fixture, '--input-ids', '5,6,7', '--out', out, '--dtype', 'float32')
    expect(code, stderr).toBe(0)
    const info = openCheckpoint(temp).tensors.get('logits')!
    const { vocab_size } = JSON.parse(readFileSync(join(fixture, 'config.json'), 'utf8')) as { vocab_size: number }
    expect([info.dtype, info.shape]).toEqual(['F32', [3, vocab_size]])
  })

  it('inspect tells what a checkpoint holds', async () => {
    const [words, json] = await Promise.all([at('inspect', demo), at('inspect', demo, '--json')])
    expect([words.code, words.stderr, json.stderr]).toEqual([0, '', ''])
    expect(words.stdout).toMatch(/architecture +deepseek_v3/)
    expect(words.stdout).toMatch(/F8_E4M3 +17.2 MiB/)
    expect(JSON.parse(json.stdout)).toMatchObject({ layers: { total: 6, moe: 5 }, tokenizer: { vocabSize: 8192 } })
  })

  it('explain and doctor report in words and in JSON', async () => {
    const [words, json, doctor] = await Promise.all([
      at('explain', demo, '--program'),
      at('explain', demo, '--json'),
      at('doctor', '--json'),
    ])
    expect(words.stdout).toContain('every distinct shard once')
    expect(words.stdout).toContain('program of a step')
    expect(JSON.parse(json.stdout)).toMatchObject({ model: { architecture: 'deepseek_v3', layers: 6 } })
    expect(doctor.code).toBe(0)
    const report = JSON.parse(doctor.stdout) as { checks: { name: string; status: string }[] }
    expect(report.checks.map(check => check.name)).toEqual([
      'node',
      'processor',
      'memory',
      'kernels',
      'compiler',
      'cuda',
      'demo model',
    ])
    expect(report.checks.every(check => check.status !== 'fail')).toBe(true)
  })

  it('bench engine measures speeds and a share of the bandwidth', async () => {
    const { code, stdout, stderr } = await at(
      'bench',
      'engine',
      fixture,
      '--batches',
      '1,4',
      '--prompt-tokens',
      '8',
      '--output-tokens',
      '24',
      '--json',
    )
    expect(code, stderr).toBe(0)
    const { results, readBytesPerSecond } = JSON.parse(stdout) as {
      results: Record<string, number>[]
      readBytesPerSecond: number
    }
    expect(results.map(row => row['batch'])).toEqual([1, 4])
    for (const row of results) expect(row['decodeTokensPerSecond']).toBeGreaterThan(0)
    expect(readBytesPerSecond).toBeGreaterThan(1e8)
  })

  it('says what is wrong with a directory, without a stack trace', async () => {
    const { code, stdout, stderr } = await at('generate', join(temp, 'nothing'), '--input-ids', '1')
    expect([code, stdout]).toEqual([2, ''])
    expect(stderr).toMatch(/^error SY_\w+: .*\nfix: .*\n$/)
  })
})

describe('switchyard serve', () => {
  async function serving(
    args: readonly string[],
    env: Record<string, string> = {},
  ): Promise<Running & { url: string }> {
    const running = start(['serve', demo, ...args], env)
    const url = await new Promise<string>((resolve, reject) => {
      const look = () => {
        const found = /(http:\S+)\/v1/.exec(running.printed())
        if (found) resolve(found[1]!)
      }
      running.child.stdout?.on('data', look)
      void running.ended.then(({ stderr }) => reject(new Error(`serve ended: ${stderr}`)))
    })
    return { ...running, url }
  }

  it('serves the demo to the openai client and ends cleanly at Ctrl-C', async () => {
    const { url, child, ended } = await serving([], { PORT: '0' })
    const client = new OpenAI({ baseURL: `${url}/v1`, apiKey: 'none', maxRetries: 0 })
    expect((await client.models.list()).data.map(model => model.id)).toEqual(['demo'])
    const answer = await client.completions.create({
      model: 'demo',
      prompt: 'Once upon a time',
      max_tokens: 8,
      temperature: 0,
    })
    expect(answer.choices[0]!.text.length).toBeGreaterThan(4)
    const stream = await client.completions.create({
      model: 'demo',
      prompt: 'Once upon a time',
      max_tokens: 8,
      temperature: 0,
      stream: true,
    })
    let text = ''
    for await (const chunk of stream) text += chunk.choices[0]?.text ?? ''
    expect(text).toBe(answer.choices[0]!.text)
    const chat = await client.chat.completions.create({
      model: 'demo',
      messages: [{ role: 'user', content: 'The sea' }],
      max_tokens: 8,
      seed: 3,
    })
    expect(chat.usage?.completion_tokens).toBe(8)
    child.kill('SIGINT')
    expect((await ended).code).toBe(0)
  })

  it('frees the KV pages of a stream that its client leaves', async () => {
    const { url, child, ended } = await serving(['--port', '0'])
    const client = new OpenAI({ baseURL: `${url}/v1`, apiKey: 'none', maxRetries: 0 })
    const used = async () => {
      const info = (await (await fetch(`${url}/server_info`)).json()) as {
        internal_states: { running: number; usedTokens: number }[]
      }
      return info.internal_states[0]!
    }
    const stream = await client.completions.create({
      model: 'demo',
      prompt: 'Once',
      max_tokens: 1500,
      stream: true,
      extra_body: { ignore_eos: true },
    } as OpenAI.CompletionCreateParamsStreaming)
    let seen = 0
    for await (const _ of stream) if (++seen === 5) break
    const end = performance.now() + 5000
    while ((await used()).running > 0 && performance.now() < end) await new Promise(resolve => setTimeout(resolve, 5))
    expect(await used()).toMatchObject({ running: 0, usedTokens: 0 })
    child.kill('SIGTERM')
    expect((await ended).code).toBe(0)
  })

  it('refuses a taken port before it loads anything', async () => {
    const blocker = createServer()
    await new Promise<void>(resolve => blocker.listen(0, '127.0.0.1', resolve))
    const { port } = blocker.address() as { port: number }
    const { code, stderr, stdout } = await at('serve', demo, '--port', String(port))
    blocker.close()
    expect([code, stdout]).toEqual([2, ''])
    expect(stderr).toMatch(/^error SY_CONFIG_PORT_IN_USE: .*\nfix: .*--port/)
  })
})
