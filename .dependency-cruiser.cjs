// The layer rule of ARCHITECTURE.md: imports point downward only, and folders on one tier do not import each other.
const tiers = [
  ['cli', 'server'],
  ['planner'],
  ['engine'],
  ['scheduler', 'models'],
  ['layers', 'moe', 'eplb'],
  ['program'],
  ['comm', 'kvcache'],
  ['parallel'],
  ['device'],
  ['formats', 'trace', 'runtime', 'config'],
]
const sameTierAllowed = new Set(['cli>server', 'layers>moe', 'moe>eplb', 'formats>config', 'trace>config', 'runtime>config', 'formats>runtime', 'trace>runtime'])
// Types of memory and operands are the vocabulary of weights, so formats may import device's contract files (not its implementations).
const contracts = '^src/device/(memory|ops)\\.ts$'
const forbidden = []
tiers.forEach((tier, i) => {
  for (const from of tier) {
    const above = tiers.slice(0, i).flat()
    const peers = tier.filter(p => p !== from && !sameTierAllowed.has(`${from}>${p}`))
    const no = [...above, ...peers]
    if (no.length === 0) continue
    forbidden.push({
      name: `${from}-imports-downward`,
      severity: 'error',
      from: { path: `^src/${from}/`, pathNot: '\\.(test|suite)\\.ts$' },
      to: { path: `^src/(${no.join('|')})/`, pathNot: contracts },
    })
  }
})
forbidden.push({ name: 'no-cycles', severity: 'error', from: { pathNot: '\\.(test|suite)\\.ts$' }, to: { circular: true } })

module.exports = { forbidden, options: { tsPreCompilationDeps: true, tsConfig: { fileName: 'tsconfig.json' }, doNotFollow: { path: 'node_modules' } } }
