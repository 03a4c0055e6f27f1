// `.pt` files of torch.save without PyTorch: read safely, written so that torch.load takes them.

export { TorchFileError } from './errors.js'
export { loadTorchBytes, loadTorchFile, type TorchFile } from './load.js'
export type { Saveable, TensorData } from './pickle-writer.js'
export { saveTorchFile, torchFileBytes } from './save.js'
export { type TorchDtype, TorchTensor } from './tensor.js'
