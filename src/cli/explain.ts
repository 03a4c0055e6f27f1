// `switchyard explain DIR`: what the model and the flags come to, before anything is allocated: ranks and their groups,
// who holds which experts, memory, limits, the collectives and why they are there, the program.
import { Command } from 'commander'
import type { ExplainReport } from '../engine/index.js'
import { engineModule } from './engine.js'
import { drawRanks, expertRanges } from './explain-draw.js'
import { addEngineFlags, takeEngineFlags } from './flag-options.js'
import type { CliIo } from './io.js'
import { bytes, printReport, table, whole } from './report.js'

export function explainCommand(io: CliIo): Command {
  return addEngineFlags(new Command('explain'))
    .option('--json', 'one JSON object on stdout and nothing else')
    .option('--program', 'print every operation of a step')
    .summary('show ranks, memory, collectives and the program of a step')
    .description(
      'Shows what a model and its flags come to, without loading weights: which rank is in which groups and holds which experts, memory, limits, the collectives of a step and why each is there.',
    )
    .addHelpText(
      'after',
      `
Examples:
  switchyard explain models/demo
  switchyard explain models/demo --tp-size 4 --attn-dp-size 2 --ep-size 4
  switchyard explain models/demo --tp-size 2 --attn-dp-size 2 --ep-size 2 --program
  switchyard explain models/demo --context-length 512 --max-running-requests 8 --json`,
    )
    .action(async (dir: string | undefined, options: Readonly<Record<string, unknown>>) => {
      const flags = takeEngineFlags('explain', dir, options)
      const report = (await engineModule()).explainModel(flags)
      printReport(io, options['json'] === true, report, () => text(report, options['program'] === true))
    })
}

function text(report: ExplainReport, withProgram: boolean): string {
  const { model, parallel, memory, limits } = report
  const sections = [
    `${model.name}: ${model.architecture}, ${model.layers} layers, weights in ${model.dtype}`,
    `tp ${parallel.tp} = attn_dp ${parallel.attnDp} x attn_cp ${parallel.attnCp} x attn_tp ${parallel.attnTp} = moe_dp ${parallel.moeDp} x ep ${parallel.ep} x moe_tp ${parallel.moeTp}`,
    ...parallel.notes,
    '',
    ...drawRanks(report),
    '',
    table(
      ['rank', 'attn-TP group', 'attn-DP group', 'EP group', 'MoE-TP group', 'experts (first MoE layer)', 'weights'],
      report.ranks.map(r => [
        String(r.rank),
        members(r.groups.attnTp),
        members(r.groups.attnDp),
        members(r.groups.moeEp),
        members(r.groups.moeTp),
        expertRanges(r.experts),
        bytes(r.weightBytes),
      ]),
    ),
    '',
    `weights ${bytes(memory.weightBytes)} on this node, every distinct shard once`,
    `KV cache ${bytes(memory.kvBytes)} a rank: ${whole(memory.kvTokens)} tokens of ${bytes(memory.kvBytesPerToken)}; arena ${bytes(memory.arenaBytes)} a rank (${bytes(memory.arenaUnsharedBytes)} without sharing)`,
    `limits: context ${whole(limits.contextLength)} tokens, ${whole(limits.tokensPerStep)} rows a step and DP rank, ${limits.sequences} requests a DP rank, pages of ${limits.pageSize}`,
    '',
    ...(report.kvChoices.length > 1 ? [kvTable(report), ''] : []),
    ...(report.expertBuffer.length > 0 ? [bufferTable(report), ''] : []),
    ...(report.collectives.length > 0 ? [collectiveTable(report)] : ['no collectives: one rank does everything']),
    ...(withProgram ? ['', 'program of a step', ...report.programText.map(line => `  ${line}`)] : []),
  ]
  return `${sections.map(section => section.trimEnd()).join('\n')}\n`
}

/** 0 1 2 3; of many ranks the first and the last. */
const members = (ranks: readonly number[]): string =>
  ranks.length <= 8 ? ranks.join(' ') : `${ranks.slice(0, 3).join(' ')} … ${ranks.at(-1)} (${ranks.length})`

const kvTable = ({ kvChoices, parallel }: ExplainReport): string =>
  table(
    ['attention over these ranks', 'KV bytes a token and rank', 'copies of a token', 'tokens in all ranks'],
    kvChoices.map(c => [
      `attn_dp ${c.attnDp} x attn_tp ${c.attnTp}${c.attnDp === parallel.attnDp ? ' (chosen)' : ''}`,
      bytes(c.bytesPerTokenPerRank),
      c.copies.toFixed(c.copies % 1 === 0 ? 0 : 2),
      whole(c.tokensInAll),
    ]),
  )

const bufferTable = ({ expertBuffer }: ExplainReport): string => {
  const total = expertBuffer.reduce((sum, p) => sum + p.bytes, 0)
  return table(
    ['expert buffer of a rank', 'bytes', 'how it comes about', 'peers write it'],
    [
      ...expertBuffer.map(p => [p.part, bytes(p.bytes), p.formula, p.peers ? 'yes' : 'no']),
      ['in all', bytes(total), '', ''],
    ],
  )
}

/** Runs of layers named in a table; more are counted. */
const MOST_RUNS = 6

/** Ascending: 1, 2, 3, 5 → "1-3, 5". */
function ranges(layers: readonly number[]): string {
  const runs: [number, number][] = []
  for (const layer of layers) {
    const run = runs.at(-1)
    if (run !== undefined && run[1] === layer - 1) run[1] = layer
    else runs.push([layer, layer])
  }
  const shown = runs.slice(0, MOST_RUNS).map(([from, to]) => (from === to ? String(from) : `${from}-${to}`))
  return runs.length > MOST_RUNS ? `${shown.join(', ')}, … (${layers.length})` : shown.join(', ')
}

/** Collectives that differ only in their layer are one row. Reasons are long and few, so rows name them by number. */
function collectiveTable({ collectives }: ExplainReport): string {
  const rows = new Map<string, { layers: number[]; cells: string[] }>()
  const reasons = [...new Set(collectives.map(c => c.why))]
  for (const c of collectives) {
    const key = `${c.kind} ${c.group} ${c.label}`
    const row = rows.get(key) ?? { layers: [], cells: [c.kind, c.group, c.label, `(${1 + reasons.indexOf(c.why)})`] }
    row.layers.push(c.layer)
    rows.set(key, row)
  }
  const list = table(
    ['collective', 'group', 'layers', 'what', 'why'],
    [...rows.values()].map(({ layers, cells: [kind, group, label, why] }) => [
      kind!,
      group!,
      layers[0] === -1 ? '-' : ranges(layers),
      label!,
      why!,
    ]),
  )
  return `${list}\n${reasons.map((why, i) => `(${i + 1}) ${why}\n`).join('')}`
}
