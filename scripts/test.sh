#!/usr/bin/env bash
# Everything that can be tested on this machine. Usage: scripts/test.sh [stage…]
# Stages, in order: lint monitoring unit integration up e2e engine hosts down; hosts (image builds, provisioning, fleets) only
# when named or with KIT_SLOW=1, which also adds the tests that measure while they serve and the long fault matrices: they
# want a quiet machine. The first failure stops it.
set -euo pipefail
cd "$(dirname "$0")/.."
export PATH=$PWD/.venv/bin:$PWD/.cache/tools/bin:$PATH
stages=("$@")
[ ${#stages[@]} -gt 0 ] || stages=(lint monitoring unit integration up e2e engine ${KIT_SLOW:+hosts} down)
fast="${KIT_SLOW:+slow or }not slow"
# Tests on machines of their own: containers with an init, registries, image builds. They need the Docker that `up` started.
hosts=(tests/integration/images tests/integration/provision tests/integration/fleet)
summary=()

stage() {
  local name=$1
  shift
  local started=$SECONDS
  printf '\n=== %s\n' "$name"
  if "$@"; then
    summary+=("$(printf 'ok      %-12s %4d s' "$name" $((SECONDS - started)))")
  else
    summary+=("$(printf 'FAILED  %-12s %4d s' "$name" $((SECONDS - started)))")
    printf '%s\n' '' "${summary[@]}"
    exit 1
  fi
}

engine() {
  # The tests that need torch and SGLang run inside the engine's own image.
  local image=deploy-kit/rehearsal-test:local
  python -m deploy_kit.deploy.images build --target rehearsal-test --tag "$image" >/dev/null || return 1
  local tests=(tests/integration/engine tests/integration/probe)
  [ -z "${KIT_SLOW:-}" ] || tests+=(tests/integration/startup/test_real_engine.py tests/integration/startup/test_real_engine_slow.py)
  docker run --rm --network none --tmpfs /tmp:exec,mode=1777 --volume "$PWD:/src:ro" --workdir /src \
    --env DEPLOY_KIT_TORCH_PYTHON=/opt/engine/bin/python "$image" -p no:cacheprovider -q --durations=8 \
    -m "$fast" "${tests[@]}" || return 1
  [ -z "${KIT_SLOW:-}" ] || pytest -q tests/integration/startup/test_container_faults.py
}

scripts/test-tools.sh
for name in "${stages[@]}"; do
  case $name in
    lint) stage lint scripts/lint.sh ;;
    monitoring) stage monitoring monitoring/check.sh ;;
    unit) stage unit pytest -q -n 2 tests/unit ;;
    integration)
      stage integration pytest -q -m "$fast" --durations=5 --ignore tests/integration/engine "${hosts[@]/#/--ignore=}" \
        tests/integration
      ;;
    up) stage up deploy-kit up ;;
    e2e) stage e2e pytest -q --durations=8 tests/e2e ;;
    engine) stage engine engine ;;
    hosts) stage hosts pytest -q -m "$fast" --durations=8 "${hosts[@]}" ;;
    down) stage down deploy-kit down ;;
    *) echo "unknown stage: $name" >&2 && exit 2 ;;
  esac
done
printf '%s\n' '' "${summary[@]}" "all in $((SECONDS / 60)) min $((SECONDS % 60)) s"
