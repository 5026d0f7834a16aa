#!/bin/sh
# Installs the rehearsal engine into one Python environment: locked packages, then this folder's own project.
#
#   install.sh PYTHON [pip option…]     e.g.  install.sh /opt/engine/bin/python --extra-index-url "$TORCH_CPU_INDEX"
#
# pip prefers a candidate whose hash an index page states over a local file, so the CPU build of torch is installed
# first, by its full version; rehearsal.txt then finds torch satisfied. Where no CPU build is found, PyPI's CUDA build
# with its libraries is installed instead: it serves on the CPU too, but takes several GB.
# Needs `patch`.
set -eu
[ $# -ge 1 ] || { echo "usage: install.sh PYTHON [pip option…]" >&2; exit 2; }
python=$1
shift
here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)
requirements=$here/../requirements

locked() {
    "$python" -m pip install --no-cache-dir --no-deps --require-hashes --only-binary :all: "$@"
}

if ! locked "$@" -r "$requirements/rehearsal-torch-cpu.txt"; then
    echo "rehearsal: no CPU build of torch found (pip's find-links, or the CPU index given as an option);" \
        "installing PyPI's CUDA build, several GB" >&2
    locked "$@" -r "$requirements/rehearsal-torch-pypi.txt"
fi
locked "$@" -r "$requirements/rehearsal.txt"

# Source patches, for what a plug-in cannot do; an already patched environment is left as it is.
site_packages=$("$python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
for change in "$here"/patches/*.patch; do
    if patch --directory "$site_packages" --dry-run --reverse --force --strip 1 --input "$change" >/dev/null 2>&1; then
        continue
    fi
    patch --directory "$site_packages" --fuzz 0 --strip 1 --input "$change"
done

# Built from a copy: this folder may be mounted read-only.
copy=$(mktemp -d)
trap 'rm -rf "$copy"' EXIT
cp -R "$here/pyproject.toml" "$here/src" "$copy/"
"$python" -m pip install --no-cache-dir --no-deps --no-index --no-build-isolation "$copy"
