#!/bin/sh
# Removes from an installed rehearsal engine what a CPU server never reads:  trim.sh SITE_PACKAGES
#
# Compiled Python (__pycache__) stays: the image is read-only, and without it every start compiles 17,000 files again.
# Strips debug symbols where `strip` (binutils) is there; that is half of what is saved.
set -eu
[ $# -eq 1 ] || { echo "usage: trim.sh SITE_PACKAGES" >&2; exit 2; }
site_packages=$1
[ -d "$site_packages/sglang" ] && [ -d "$site_packages/torch" ] || {
    echo "trim.sh: $site_packages holds no rehearsal engine (no sglang, no torch)" >&2
    exit 2
}
cd "$site_packages"
before=$(du -sm . | cut -f1)

# torch: its own C++ tests, headers, protobuf compiler, static libraries
rm -rf torch/test torch/include torch/share torch/bin/protoc* torch/bin/test_* torch/bin/*_test
find torch/bin -type f ! -name torch_shm_manager -delete
rm -f torch/lib/libjitbackend_test.so torch/lib/libtorchbind_test.so torch/lib/libbackend_with_compiler.so
find torch -name '*.a' -delete

# triton: imported for its decorators, never compiles; the assemblers and device libraries of both vendors
rm -rf triton/backends/nvidia/bin triton/backends/nvidia/lib triton/backends/nvidia/include
rm -rf triton/backends/amd/lib triton/backends/amd/include
rm -rf triton/instrumentation triton/plugins triton/FileCheck triton/include
rm -f triton/_C/libproton.so

# torchvision: published for CUDA, its libraries cannot load beside a CPU build of torch
rm -rf torchvision.libs
rm -f torchvision/*.so

# sglang: image and video generation, benchmarks, sources of GPU kernels (the n-gram module is compiled before this)
rm -rf sglang/multimodal_gen sglang/kernels/jit/benchmark
rm -f sglang/srt/rust_extensions/_bench.*.so sglang/srt/rust_extensions/_multimodal.*.so

# tests of the libraries
for library in sympy networkx mpmath; do
    find "$library" -type d -name tests -prune -exec rm -rf {} +
done
rm -rf sympy/benchmarks jedi/third_party/django-stubs

if command -v strip >/dev/null; then
    strip --strip-unneeded triton/_C/libtriton.so torch/lib/libtorch_cpu.so torch/lib/libtorch_python.so
fi
echo "trimmed: $before MB to $(du -sm . | cut -f1) MB"
