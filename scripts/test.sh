#!/usr/bin/env bash
# Everything that can be tested on this machine. Usage: scripts/test.sh [stage…]
# Stages: lint monitoring unit integration up e2e slice engine hosts down; scripts/stages.py says which run side by side.
# hosts (provisioning, fleets) only when named or with KIT_SLOW=1, which also adds the tests that measure while they serve
# and the long fault matrices, and runs one stage after another. The first failure stops it.
set -euo pipefail
cd "$(dirname "$0")/.."
export PATH=$PWD/.venv/bin:$PWD/.cache/tools/bin:$PATH
scripts/test-tools.sh
exec python scripts/stages.py "$@"
