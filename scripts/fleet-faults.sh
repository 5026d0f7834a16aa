#!/usr/bin/env bash
# The long fault matrix of the fleet, on systemd containers of this machine: about an hour.
# Usage: scripts/fleet-faults.sh [pytest arguments]     FLEET_SEEDS=1-20 chooses the kills, FLEET_NOTES=FILE keeps their receipt,
# FLEET_KEEP=FOLDER keeps the machines for the next call (a course in pieces).
set -euo pipefail
cd "$(dirname "$0")/.."
export FLEET_FAULTS=1
exec .venv/bin/pytest -q -rA -m slow tests/integration/fleet/test_faults.py "$@"
