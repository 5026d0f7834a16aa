#!/usr/bin/env bash
# The tests that need torch and SGLang, inside the engine's own image. Usage: scripts/test-engine.sh   (Docker must answer)
set -euo pipefail
cd "$(dirname "$0")/.."
image=deploy-kit/rehearsal-test:local
name=deploy-kit-test-engine-$$
tests=(tests/integration/engine)
marked='not slow'
workers=(-n 2 --dist loadgroup)
if [ -n "${KIT_SLOW:-}" ]; then
  tests+=(tests/integration/startup/test_real_engine.py tests/integration/startup/test_real_engine_slow.py)
  marked='slow or not slow'
  # Measurements and long fault matrices have the machine for themselves.
  workers=()
fi

# Usage: in_engine SHARES [pytest's words…]. SHARES: of the processors, where others want them too (1024: an equal part).
in_engine() {
  local shares=$1
  shift
  # The image's health check would start a Python every few seconds for a `serve` that is not there.
  docker run --rm --init --no-healthcheck --name "$name" --cpu-shares "$shares" --network none --tmpfs /tmp:exec,mode=1777 \
    --volume "$PWD:/src:ro" --workdir /src --env DEPLOY_KIT_TORCH_PYTHON=/opt/engine/bin/python "$image" \
    -p no:cacheprovider -q --durations=8 -m "$marked" "$@"
}

python -m deploy_kit.deploy.images build --target rehearsal-test --tag "$image" >/dev/null
# Docker outlives its command line: whatever ends this script ends the container.
trap 'docker rm --force "$name" >/dev/null 2>&1 || true' EXIT
# Ranks are timed against each other: nothing else in the container.
in_engine 1024 tests/integration/probe
# Beside a deployment that serves, the deployment goes first.
in_engine 256 "${workers[@]}" "${tests[@]}"
[ -z "${KIT_SLOW:-}" ] || pytest -q tests/integration/startup/test_container_faults.py
