// A drawing of the ranks: one box an attention-DP rank (its own requests and KV cache), in it its attention-TP members,
// under each the experts it holds.
import type { ExplainReport } from '../engine/index.js'

/** 0-7, 12, 14-15 */
export function expertRanges(experts: readonly number[]): string {
  if (experts.length === 0) return '-'
  const parts: string[] = []
  for (let i = 0; i < experts.length; ) {
    let j = i
    while (j + 1 < experts.length && experts[j + 1] === experts[j]! + 1) j++
    parts.push(j === i ? `${experts[i]}` : `${experts[i]}-${experts[j]}`)
    i = j + 1
  }
  return parts.length > 8 ? `${parts.slice(0, 8).join(', ')}, … (${experts.length})` : parts.join(', ')
}

/** @param columns width of the terminal; boxes wrap to further lines */
export function drawRanks({ ranks, parallel }: ExplainReport, columns = 100): string[] {
  const boxes = Array.from({ length: parallel.attnDp }, (_, dp) =>
    box(
      ranks.filter(r => r.attnDp === dp),
      dp,
      parallel,
    ),
  )
  const lines: string[] = []
  let row: string[][] = []
  const flush = () => {
    if (row.length === 0) return
    const height = Math.max(...row.map(b => b.length))
    for (let i = 0; i < height; i++) lines.push(row.map(b => b[i] ?? ' '.repeat(b[0]!.length)).join(' '))
    row = []
  }
  for (const next of boxes) {
    const width = row.reduce((sum, b) => sum + b[0]!.length + 1, 0)
    if (row.length > 0 && width + next[0]!.length > columns) flush()
    row.push(next)
  }
  flush()
  return lines
}

function box(ranks: ExplainReport['ranks'], dp: number, parallel: ExplainReport['parallel']): string[] {
  const cells = ranks.map(r => {
    const held = expertRanges(r.experts)
    const cut = parallel.moeTp > 1 ? ` (cut ${r.moeTp + 1}/${parallel.moeTp})` : ''
    return [`rank ${r.rank}`, held === '-' ? 'no experts' : `experts ${held}${cut}`]
  })
  const title = ` DP rank ${dp}: own requests, own KV `
  const widths = cells.map(lines => Math.max(...lines.map(l => l.length)))
  const inner = Math.max(
    widths.reduce((a, b) => a + b + 3, -1),
    title.length + 2,
  )
  const body = [0, 1].map(i => {
    const text = cells.map((lines, c) => ` ${lines[i]!.padEnd(widths[c]!)} `).join('│')
    return `│${text.padEnd(inner)}│`
  })
  return [`┌─${title}${'─'.repeat(inner - title.length - 1)}┐`, ...body, `└${'─'.repeat(inner)}┘`]
}
