#!/usr/bin/env bash
# Packs SGLang 0.5.17 and what it needs into .carry/site.tar.xz (about 55 MiB), for a GPU machine without a network.
# Usage: scripts/gpu/prepare.sh [PYTHON]     Then, there: mkdir site && tar -xJf .carry/site.tar.xz -C site
# Wheels are kept in .cache/gpu-wheels, so a second run downloads nothing.
set -euo pipefail
cd "$(dirname "$0")/../.."
python=${1:-python3}
wheels=.cache/gpu-wheels
site=build/gpu-site
for tool in xz strip unzip; do
  if ! command -v "$tool" >/dev/null; then
    echo "prepare: $tool is missing; remedy: apt-get install xz-utils binutils unzip" >&2
    exit 16
  fi
done

mkdir -p "$wheels" .carry
printf '*\n' >.carry/.gitignore
platforms=(--platform manylinux2014_x86_64 --platform manylinux1_x86_64)
for minor in 5 17 24 26 27 28 31 34; do
  platforms+=(--platform "manylinux_2_${minor}_x86_64")
done
"$python" -m pip download --quiet --disable-pip-version-check --no-deps --only-binary=:all: \
  --python-version 3.12 --implementation cp --abi cp312 --abi abi3 --abi none "${platforms[@]}" \
  --find-links "$wheels" --dest "$wheels" --requirement scripts/gpu/wheels.txt

rm -rf "$site"
mkdir -p "$site"
# flash_ops alone is 1.1 GB: only the libraries of this GPU generation are unpacked. They load lazily.
for wheel in "$wheels"/*.whl; do
  case ${wheel##*/} in
    sglang_kernel-*)
      unzip -q -o "$wheel" -d "$site" \
        -x 'sgl_kernel/flash_ops*' 'sgl_kernel/infllm_ops*' 'sgl_kernel/flashmla_ops*' 'sgl_kernel/sm100/*'
      ;;
    *) unzip -q -o "$wheel" -d "$site" ;;
  esac
done

# What a server of these profiles never opens: examples, tests, documents, static libraries, Rust front ends.
for needless in flashinfer/data/cutlass/{examples,test,python,docs,media} flashinfer/data/cccl/python \
  sglang/multimodal_gen sglang/test; do
  rm -rf "${site:?}/$needless"
done
rm -f "$site"/sglang/srt/{server,grpc}/_core*.so
find "$site" \( -name '*.a' -o -name '*.pyc' \) -delete
find "$site" -name '*.so*' -type f -exec strip --strip-debug {} + 2>/dev/null || true

# SGLang imports both at start, and uses neither here.
sed -i 's/^\( *\)import deep_gemm$/\1deep_gemm = None/' "$site/sglang/srt/layers/attention/dsa_backend.py"
mkdir -p "$site/IPython"
printf '"""Stand-in: SGLang imports these names for notebooks only."""\n' >"$site/IPython/__init__.py"
printf 'HTML = display = None\n' >"$site/IPython/display.py"

# deploy_kit itself runs from the checkout; SGLang finds its plug-in through this entry point.
version=$(sed -n 's/^__version__ = "\(.*\)"$/\1/p' deploy_kit/__init__.py)
info=$site/deploy_kit-$version.dist-info
mkdir -p "$info"
printf 'Metadata-Version: 2.1\nName: deploy-kit\nVersion: %s\n' "$version" >"$info/METADATA"
printf '[sglang.srt.plugins]\ndeploy_kit_telemetry = deploy_kit.telemetry.plugin:register\n' >"$info/entry_points.txt"

# Level 1 is a sixth of the work for a fifth more bytes.
tar -C "$site" -cf - . | xz -T2 -1 >.carry/site.tar.xz.new
mv .carry/site.tar.xz.new .carry/site.tar.xz
du -h .carry/site.tar.xz >&2
