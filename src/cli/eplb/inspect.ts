// `switchyard eplb inspect`: what is in a dump or placement file, and how uneven its load is.

import { Command } from 'commander'
import { gpuLoads, makeCluster, meanBalancedness, quality, sumSteps, trivialPlacement } from '../../eplb/index.js'
import {
  type ExpertLoad,
  isPlacementOnly,
  openFile,
  placementOf,
  readExpertLoad,
  writeExpertLoad,
} from '../../formats/expert-load/index.js'
import { terminalHeatMap } from '../draw/index.js'
import type { CliIo } from '../io.js'
import { printReport, table } from '../report.js'
import { countsOfLoad, placementOn } from './input.js'
import { OUTPUT, option, outputFile, wholeNumber } from './options.js'
import { four, percent, terminalStyle, whole } from './output.js'

interface InspectFlags {
  readonly gpus?: number
  readonly out?: string
  readonly json?: boolean
}

const EXAMPLES = `
Examples:
  switchyard eplb inspect expert_distribution_recorder_1764420000.0.pt --gpus 8
  switchyard eplb inspect dump_0.pt dump_1.pt --out merged.pt     the ranks of one dump, summed, as a stat dump
  switchyard eplb inspect placement.json --json`

export function inspectCommand(io: CliIo): Command {
  return new Command('inspect')
    .description('say what is in expert-load dumps or a placement')
    .argument('<files...>', 'recorder dump (all ranks of it), JSON, .npy, or one placement')
    .addOption(option('Cluster:', '--gpus <n>', 'GPUs to judge the load on', t => wholeNumber('--gpus', t, 1)))
    .addOption(
      option(OUTPUT, '--out <file>', 'write the summed load: .pt (stat dump), .npy or .json', t =>
        outputFile('--out', t, '.pt', '.npy', '.json'),
      ),
    )
    .addOption(option(OUTPUT, '--json', 'print the facts as JSON, nothing else, on stdout'))
    .addHelpText('after', EXAMPLES)
    .action((files: string[], flags: InspectFlags) => {
      const [file] = files
      const opened = files.length === 1 ? openFile(file!) : undefined
      if (opened !== undefined && isPlacementOnly(opened.value))
        inspectPlacement(io, file!, opened.format, opened.value, flags)
      else inspectLoad(io, readExpertLoad(files), flags)
    })
}

function inspectPlacement(io: CliIo, file: string, format: string, value: unknown, flags: InspectFlags): void {
  const map = placementOf(file, value)
  const most = new Array<number>(map.layers).fill(0)
  for (let l = 0; l < map.layers; l++) {
    const replicas = new Int32Array(map.logical)
    for (const e of map.physicalToLogical.subarray(l * map.physical, (l + 1) * map.physical))
      replicas[e] = replicas[e]! + 1
    most[l] = replicas.reduce((a, b) => Math.max(a, b))
  }
  const data = {
    format,
    mode: 'placement',
    steps: null,
    layers: map.layers,
    logical: map.logical,
    physical: map.physical,
    total: null,
    balancedness: null,
    redundant: map.physical - map.logical,
    mostReplicasPerLayer: most,
  }
  printReport(io, flags.json === true, data, () => {
    const slots = `${map.physical} slots for ${map.logical} experts (${map.physical - map.logical} redundant) in ${map.layers} layers`
    return `placement (${format}): ${slots}\nmost replicas of one expert, per layer: ${most.join(', ')}\n`
  })
}

function inspectLoad(io: CliIo, load: ExpertLoad, flags: InspectFlags): void {
  const counts = countsOfLoad(load)
  const experts = load.logical
  const sums = sumSteps(counts)
  const perExpert = Array.from({ length: load.layers }, (_, l) => [...sums.subarray(l * experts, (l + 1) * experts)])
  const onGpus = flags.gpus === undefined ? null : judge(load, flags.gpus)
  const hottest = perExpert.map(row => {
    const sum = row.reduce((a, b) => a + b, 0)
    const peak = Math.max(...row)
    return {
      expert: row.indexOf(peak),
      share: sum > 0 ? peak / sum : 0,
      overMean: sum > 0 ? (peak * experts) / sum : 0,
    }
  })
  const data = {
    format: load.format,
    mode: load.mode,
    steps: load.steps,
    layers: load.layers,
    logical: load.logical,
    physical: load.placement?.physical ?? null,
    total: load.total,
    balancedness: onGpus?.balancedness ?? null,
    balancednessPerLayer: onGpus?.perLayer ?? null,
    balancednessOf: onGpus === null ? null : { gpus: flags.gpus, placement: onGpus.placement },
    hottestPerLayer: hottest,
    files: load.files,
    notes: load.notes,
  }
  if (flags.out !== undefined) {
    writeExpertLoad(flags.out, load)
    io.err(`wrote ${flags.out}\n`)
  }
  printReport(io, flags.json === true, data, () => {
    const style = terminalStyle(io)
    let text = `format   ${load.format}, ${load.mode}\n`
    text += `load     ${whole(load.steps)} steps, ${load.layers} layers, ${load.logical} experts, ${whole(load.total)} token-expert pairs\n`
    if (load.placement !== null)
      text += `slots    ${load.placement.physical} (${load.placement.physical - load.logical} redundant), placement recorded\n`
    for (const note of load.notes) text += `note     ${note}\n`
    if (onGpus !== null) {
      text += `\nbalancedness on ${flags.gpus} GPUs, ${onGpus.placement} placement: ${four(onGpus.balancedness)}\n`
      text += `\nload per GPU\n${terminalHeatMap(onGpus.gpuLoad, style, 'layer')}`
    }
    text += `\nload per expert\n${terminalHeatMap(perExpert, style, 'layer')}\n`
    const rows = hottest.map((h, l) => [
      String(l),
      h.share > 0 ? String(h.expert) : '–',
      percent(h.share),
      `${h.overMean.toFixed(2)} ×`,
    ])
    text += table(['layer', 'hottest expert', 'share', 'of the mean'], rows)
    if (onGpus === null) text += '\nSay --gpus N to see how evenly N GPUs would be loaded.\n'
    return text
  })
}

/** The load on so many GPUs: under the recorded placement where its slots divide, else one slot after the other. */
function judge(load: ExpertLoad, gpus: number) {
  const counts = countsOfLoad(load)
  const recorded = load.placement !== null && load.placement.physical % gpus === 0 ? load.placement : null
  const cluster = makeCluster({ gpus, physical: recorded?.physical ?? Math.ceil(load.logical / gpus) * gpus })
  const placement =
    recorded === null
      ? trivialPlacement(load.layers, load.logical, cluster)
      : placementOn(recorded, load.logical, cluster)
  const found = quality(placement, counts)
  const loads = gpuLoads(placement, counts)
  return {
    placement: recorded === null ? ('trivial' as const) : ('recorded' as const),
    balancedness: meanBalancedness(found),
    perLayer: [...found.balancedness],
    gpuLoad: Array.from({ length: load.layers }, (_, l) => [...loads.subarray(l * gpus, (l + 1) * gpus)]),
  }
}
