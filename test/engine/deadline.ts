// A limit on what must not hang. Generous: it tells an answer from none, it measures nothing.

const LIMIT_MS = 15_000

export const Deadline = {
  /** @throws when `work` does not settle in time */
  async of<T>(work: Promise<T>, what: string, limitMs: number = LIMIT_MS): Promise<T> {
    let timer: NodeJS.Timeout | undefined
    const late = new Promise<never>((_, reject) => {
      timer = setTimeout(() => reject(new Error(`no end of ${what} after ${limitMs} ms`)), limitMs)
    })
    try {
      return await Promise.race([work, late])
    } finally {
      clearTimeout(timer)
    }
  },
}
