// Expert loads and placements as files: everything SGLang's recorder writes and its --init-expert-location reads.

export { ExpertLoadError } from './errors.js'
export {
  isPlacementOnly,
  type PlacementMap,
  placementJson,
  placementOf,
  readPlacement,
  writePlacement,
  writeWhole,
} from './placement-file.js'
export { type FileFormat, openFile } from './read-file.js'
export { type ExpertLoad, type LoadMode, readExpertLoad } from './read-load.js'
export { type WritableLoad, writeExpertLoad } from './write-load.js'
