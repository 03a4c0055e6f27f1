// Addresses of the host's own memory, for calls that take one.
import type { Koffi } from './libraries.js'

/** Where a view's first byte lies. The caller keeps the view alive while the address is in use. */
export function hostAddress(koffi: Koffi, view: ArrayBufferView): number {
  // Asking for the buffer takes a small array out of the collector's heap, where its address could change.
  void view.buffer
  return Number(koffi.address(view))
}
