// A generator of event blocks as an HTTP answer: what goes wrong before the first block gets its own status, what goes
// wrong later becomes a last event. Ends the ticket and the log line with the stream.
import type { RequestContext } from './context.js'
import { HttpError } from './errors.js'
import type { Ticket } from './lifecycle.js'
import { errorBody, presentable } from './openai/error-body.js'
import { sseData, sseResponse } from './sse.js'

/** Milliseconds to wait for a first event before the status line goes out: errors until then get their own status. */
const STATUS_WAIT_MS = 1000

export async function streamBlocks(
  context: RequestContext,
  ticket: Ticket,
  blocks: AsyncGenerator<string, void, undefined>,
): Promise<Response> {
  const first = blocks.next()
  let timer: NodeJS.Timeout | undefined
  const patience = new Promise<void>(resolve => {
    timer = setTimeout(resolve, STATUS_WAIT_MS)
  })
  try {
    await Promise.race([first, patience])
  } catch (error) {
    ticket.end()
    throw error
  } finally {
    clearTimeout(timer)
  }
  const source = withoutThrowing(first, blocks, error => {
    const shown = presentable(error, context.requestId)
    context.fail(shown)
    return sseData(errorBody(shown))
  })
  const writeLog = context.holdLog()
  return sseResponse(source, {
    pingMs: context.pingMs,
    stallMs: context.stallMs,
    onCancel: stalled =>
      ticket.abort(
        stalled
          ? new HttpError('SY_HTTP_STALLED', { seconds: context.stallMs / 1000 })
          : new HttpError('SY_HTTP_CLIENT_GONE'),
      ),
    onEnd: () => {
      ticket.end()
      writeLog()
    },
  })
}

/** `blocks` with its already requested first item in front, and a thrown error as a last item. */
async function* withoutThrowing(
  first: Promise<IteratorResult<string, void>>,
  blocks: AsyncGenerator<string, void, undefined>,
  asBlock: (error: unknown) => string,
): AsyncGenerator<string, void, undefined> {
  try {
    for (let item = await first; !item.done; item = await blocks.next()) yield item.value
  } catch (error) {
    yield asBlock(error)
  } finally {
    // Also when the reader left while no block was asked for: whatever still runs must stop.
    void blocks.return()
  }
}
