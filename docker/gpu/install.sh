#!/bin/sh
# Installs one group of a stack's lock into one Python environment, so that the image has a layer for each group.
#
#   install.sh PYTHON LOCK GROUP [pip option…]        GROUP: cuda, torch, kernels or others
#
# The groups are cut from the lock by name; every line keeps its hashes, and a package in no group does not exist
# (`others` takes what the first three do not name).
set -eu
[ $# -ge 3 ] || { echo "usage: install.sh PYTHON LOCK cuda|torch|kernels|others [pip option…]" >&2; exit 2; }
python=$1 lock=$2 group=$3
shift 3
cuda='^(nvidia-|cuda-)'
torch='^(torch|torchvision|torchaudio|torchcodec|triton)$'
kernels='^(flashinfer-python|flash-attn-4|sglang-kernel|sgl-deep-ep|sgl-deep-gemm|sgl-flash-mla|tilelang|humming-kernels|quack-kernels)$'
case $group in
    cuda) wanted=$cuda not='^$' ;;
    torch) wanted=$torch not='^$' ;;
    kernels) wanted=$kernels not='^$' ;;
    others) wanted='.' not="($cuda|$torch|$kernels)" ;;
    *) echo "install.sh: no such group: $group (allowed: cuda, torch, kernels, others)" >&2; exit 2 ;;
esac
part=$(mktemp)
trap 'rm -f "$part"' EXIT
awk -v wanted="$wanted" -v not="$not" '
    /^[A-Za-z0-9]/ { name = tolower($1); sub(/(\[[^]]*\])?==.*/, "", name); take = name ~ wanted && name !~ not }
    take && !/^ *#/ { print }
' "$lock" >"$part"
grep -q '==' "$part" || { echo "install.sh: $lock pins nothing of the group $group" >&2; exit 1; }
"$python" -m pip install --no-cache-dir --no-deps --require-hashes --only-binary :all: "$@" -r "$part"
