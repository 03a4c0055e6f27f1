// Pictures of data for terminals, SVG files and self-contained HTML pages.

export { heatClass } from './heat-scale.js'
export { command, figure, heading, htmlPage, htmlTable, paragraph, type Tile, tiles } from './page.js'
export { type Bar, type BarChart, barChart } from './svg-bars.js'
export { SERIES_COLORS, standaloneSvg } from './svg-frame.js'
export { type HeatMap, heatMap } from './svg-heatmap.js'
export { type LineChart, type LineSeries, lineChart } from './svg-lines.js'
export { type TerminalLine, type TerminalStyle, terminalBar, terminalHeatMap, terminalLines } from './terminal.js'
