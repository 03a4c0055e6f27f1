import { defineConfig } from 'vitest/config'

/**
 * Tests that need an NVIDIA GPU: `npm run test:gpu`. A file is a process: a kernel that goes wrong spoils the GPU's context of
 * its own process only. One file at a time, so that times and memory are what a test thinks they are.
 */
export default defineConfig({
  test: {
    include: ['test/gpu/**/*.gpu.test.ts'],
    pool: 'forks',
    fileParallelism: false,
    testTimeout: 120_000,
    hookTimeout: 120_000,
  },
})
