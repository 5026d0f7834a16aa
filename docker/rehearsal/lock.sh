#!/bin/sh
# Makes docker/requirements/rehearsal*.txt again from their .in files. Needs `uv` on PATH; asks the index uv is set up with.
set -eu
requirements=$(CDPATH='' cd -- "$(dirname -- "$0")/../requirements" && pwd)
cd "$requirements"

compile() {
    uv pip compile --quiet --generate-hashes --only-binary :all: --python-version 3.11 \
        --python-platform x86_64-manylinux_2_36 \
        --custom-compile-command 'docker/rehearsal/lock.sh' "$@"
}

compile --config-file rehearsal-uv.toml --constraint ../../requirements/runtime.txt rehearsal.in -o rehearsal.txt
# The CPU build is on no index that uv asked: its hash is added beside those of PyPI's builds.
cpu_hash=$(sed -n 's/^ *\(--hash=sha256:[0-9a-f]*\).*/\1/p' rehearsal-torch-cpu.txt)
sed -i "s/^\(torch==[0-9.]* \\\\\)\$/\1\n    $cpu_hash \\\\/" rehearsal.txt
compile --no-config --constraint rehearsal.txt rehearsal-torch-pypi.in -o rehearsal-torch-pypi.txt
compile --no-config --constraint rehearsal.txt rehearsal-tests.in -o rehearsal-tests.txt
