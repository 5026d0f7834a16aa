#!/usr/bin/env bash
# Every linter, pinned by requirements/dev.txt. Usage: scripts/lint.sh   (after `make dev`)
set -euo pipefail
cd "$(dirname "$0")/.."
bin=$PWD/.venv/bin
failed=0

check() {
  local name=$1
  shift
  local started=$SECONDS log
  if log=$("$@" 2>&1); then
    printf 'ok      %-14s %3d s\n' "$name" $((SECONDS - started))
  else
    printf 'FAILED  %-14s %3d s\n%s\n' "$name" $((SECONDS - started)) "$log"
    failed=1
  fi
}

mapfile -t shell_scripts < <(git ls-files -- '*.sh' .ci/run)
mapfile -t dockerfiles < <(git ls-files -- '*Dockerfile' '*.Dockerfile')
# Where a distribution's package is pinned by the base image's digest, versions of packages are not repeated (DL3008).
check ruff "$bin/ruff" check .
check format "$bin/ruff" format --check .
check mypy "$bin/mypy"
check yamllint "$bin/yamllint" --strict .
check ansible-lint env PATH="$bin:$PATH" ANSIBLE_CONFIG=ansible/ansible.cfg "$bin/ansible-lint" --offline --profile production ansible
check shellcheck "$bin/shellcheck" "${shell_scripts[@]}"
check hadolint "$bin/hadolint" --ignore DL3008 "${dockerfiles[@]}"
check locks scripts/check-locks.sh
exit $failed
