#!/usr/bin/env bash
# Makes .venv from the hash-locked requirements. Usage: scripts/make-venv.sh [PYTHON]
# A half-made environment is made anew, so an interruption at any point only costs time.
set -euo pipefail
cd "$(dirname "$0")/.."
python=${1:-python3}

if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
  echo "deploy-kit: Python 3.11 or newer is needed; found $("$python" --version 2>&1)" >&2
  echo "  remedy: make PYTHON=python3.12 up" >&2
  exit 3
fi
if ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then
  if [ "$(id -u)" -ne 0 ]; then
    echo "deploy-kit: Python's venv module is missing; found neither it nor root to install it" >&2
    echo "  remedy: apt-get install python3-venv" >&2
    exit 16
  fi
  apt-get update -qq && apt-get install -qq -y --no-install-recommends python3-venv >/dev/null
fi
if [ -d .venv ] && ! .venv/bin/python -m pip --version >/dev/null 2>&1; then
  rm -rf .venv
fi
echo "deploy-kit: making .venv (about a minute)" >&2
[ -d .venv ] || "$python" -m venv .venv
export PIP_DISABLE_PIP_VERSION_CHECK=1
log=$(mktemp)
trap 'rm -f "$log"' EXIT
if ! .venv/bin/python -m pip install --no-deps --require-hashes -r requirements/dev.txt >"$log" 2>&1 ||
  ! .venv/bin/python -m pip install --no-deps --no-build-isolation --editable . >>"$log" 2>&1; then
  tail -n 15 "$log" >&2
  echo "deploy-kit: the environment could not be made; run the same command again" >&2
  exit 1
fi
