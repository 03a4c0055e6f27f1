// Who is told of every engine request that the server makes. Telling must cost next to nothing: it happens once a token.
import type { GenerationEvent, GenerationRequest } from '../../engine/request.js'

export interface RequestWatch {
  event(event: GenerationEvent): void
  /** The request is over, whether it finished or not. */
  end(): void
}

export interface RequestObserver {
  begin(request: GenerationRequest): RequestWatch
}

const IGNORANT_WATCH: RequestWatch = { event: () => {}, end: () => {} }

export const IGNORANT_OBSERVER: RequestObserver = { begin: () => IGNORANT_WATCH }
