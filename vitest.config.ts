import { defineConfig } from 'vitest/config'

export default defineConfig({
  test: {
    include: ['src/**/*.test.ts', 'test/**/*.test.ts'],
    // Those need an NVIDIA GPU: vitest.gpu.config.ts.
    exclude: ['test/gpu/**'],
    pool: 'forks',
    testTimeout: 30_000,
    hookTimeout: 60_000,
    reporters: process.env['CI'] ? ['default', './scripts/closing-line-reporter.mjs'] : ['default'],
  },
})
