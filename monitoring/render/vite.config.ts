import { defineConfig } from 'vite';

export default defineConfig({
  base: './',
  // Grafana's packages ask for the build's mode through `process.env`.
  define: { 'process.env.NODE_ENV': '"production"', 'process.env': '{}', global: 'globalThis' },
  build: { outDir: 'dist', target: 'es2022', sourcemap: false, minify: false, chunkSizeWarningLimit: 20000 },
});
