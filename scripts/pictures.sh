#!/usr/bin/env bash
# Draws every dashboard from the Prometheus of the running deployment into build/pictures, NAME.png and what was
# drawn as NAME.json (no Grafana server: monitoring/render/README.md), and runs the renderer's own tests.
# Usage: scripts/pictures.sh [draw's options, such as --range 5m --end SECONDS]
# Needs Node.js 20 or newer; without it, nothing is drawn and that is said. PROMETHEUS_URL: another Prometheus.
set -euo pipefail
cd "$(dirname "$0")/.."
prometheus=${PROMETHEUS_URL:-http://127.0.0.1:9090}
out=$PWD/build/pictures

major=$(node --version 2>/dev/null | sed -n 's/^v\([0-9]*\)\..*/\1/p')
if [ "${major:-0}" -lt 20 ] || ! command -v npm >/dev/null; then
  echo "skipped: pictures need Node.js 20 or newer and npm, found ${major:+version $major}${major:-none}"
  exit 0
fi
if ! command -v chromium >/dev/null; then
  if [ "$(id -u)" -ne 0 ]; then
    echo "skipped: chromium is not installed (apt-get install chromium)"
    exit 0
  fi
  if ! { apt-get update -qq && apt-get install -qq -y --no-install-recommends chromium >/dev/null; }; then
    echo "skipped: chromium could not be installed (apt-get install chromium)"
    exit 0
  fi
fi

mkdir -p "$out"
cd monitoring/render
npm ci --ignore-scripts --no-audit --no-fund --loglevel=error
npm run --silent typecheck
npm test --silent
npm run --silent build
for dashboard in ../grafana/dashboards/*.json; do
  name=$(basename "$dashboard" .json)
  npm run --silent draw -- --prometheus "$prometheus" --dashboard "$name" --range 15m "$@" --json \
    --out "$out/$name.png" >"$out/$name.json"
  echo "drawn: build/pictures/$name.png"
done
