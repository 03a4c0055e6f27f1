// A vitest reporter that ends a run with one line any reader of a CI log can find: `N passed, N failed`.
export default class ClosingLineReporter {
  onTestRunEnd(modules, unhandledErrors) {
    const count = { passed: 0, failed: 0, skipped: 0 }
    for (const module of modules) {
      for (const test of module.children.allTests()) count[test.result().state] = (count[test.result().state] ?? 0) + 1
      if (module.errors().length > 0) count.failed += module.errors().length
    }
    count.failed += unhandledErrors.length
    const skipped = count.skipped > 0 ? `, ${count.skipped} skipped` : ''
    console.log(`\n${count.passed} passed, ${count.failed} failed${skipped}`)
  }
}
