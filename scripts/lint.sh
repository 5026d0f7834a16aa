#!/usr/bin/env bash
# Every linter, pinned by requirements/dev.txt, side by side. Usage: scripts/lint.sh   (after `make dev`)
set -euo pipefail
cd "$(dirname "$0")/.."
bin=$PWD/.venv/bin
failed=0
folder=$(mktemp -d)
names=()
# Every checker is a group of its own, so that all of it ends with this script.
set -m
# shellcheck disable=SC2329  # the trap calls it
finish() {
  local job
  for job in $(jobs -p); do kill -- "-$job" 2>/dev/null || true; done
  rm -rf "$folder"
}
trap finish EXIT

# Starts one checker beside the others; `report` waits for it.
check() {
  local name=$1
  shift
  names+=("$name")
  (
    started=$SECONDS code=0
    "$@" >"$folder/$name.log" 2>&1 || code=$?
    echo "$code $((SECONDS - started))" >"$folder/$name.end"
  ) &
}

report() {
  local name code seconds
  for name in "${names[@]}"; do
    read -r code seconds <"$folder/$name.end"
    if [ "$code" -eq 0 ]; then
      printf 'ok      %-14s %3d s\n' "$name" "$seconds"
    else
      printf 'FAILED  %-14s %3d s\n%s\n' "$name" "$seconds" "$(cat "$folder/$name.log")"
      failed=1
    fi
  done
}

mapfile -t shell_scripts < <(git ls-files -- '*.sh' .ci/run)
mapfile -t dockerfiles < <(git ls-files -- '*Dockerfile' '*.Dockerfile')
# The two long ones first; the rest fills the second core.
check mypy "$bin/mypy"
check ansible-lint env PATH="$bin:$PATH" ANSIBLE_CONFIG=ansible/ansible.cfg "$bin/ansible-lint" --offline --profile production ansible
check ruff "$bin/ruff" check .
check format "$bin/ruff" format --check .
check yamllint "$bin/yamllint" --strict .
check shellcheck "$bin/shellcheck" "${shell_scripts[@]}"
# Where a distribution's package is pinned by the base image's digest, versions of packages are not repeated (DL3008).
check hadolint "$bin/hadolint" --ignore DL3008 "${dockerfiles[@]}"
check locks scripts/check-locks.sh
# Stacks, locks, patches, Dockerfile and flake say the same (without asking an index).
check stacks "$bin/deploy-kit" stack verify
wait
report
exit $failed
