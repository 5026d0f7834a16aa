#!/bin/sh
# Removes from a GPU engine what serving never reads:  trim.sh SITE_PACKAGES
#
# Runs in the same build step as the installation, so that what goes never becomes part of a layer. Kept on purpose:
# the compiler with its headers (FlashInfer, SGLang and Triton compile what is not prebuilt), compiled Python (the image
# is read-only), libcudart_static.a and libcudadevrt.a (nvcc links them by default).
set -eu
[ $# -eq 1 ] || { echo "usage: trim.sh SITE_PACKAGES" >&2; exit 2; }
cd "$1"
before=$(du -sm . | cut -f1)

# Static libraries of CUDA and torch, but for the two that nvcc asks for by itself
find . -name '*.a' ! -name libcudart_static.a ! -name libcudadevrt.a -delete
# torch's own C++ tests and protobuf compiler
rm -rf torch/test torch/share/man
rm -f torch/bin/test_* torch/bin/*_test torch/bin/protoc*
rm -f torch/lib/libjitbackend_test.so torch/lib/libtorchbind_test.so torch/lib/libbackend_with_compiler.so
# Python that CUDA 12 would use
rm -rf nvidia_cutlass_dsl/cu12 nvidia/cutlass_dsl/cu12
# tests of libraries
for library in pandas scipy numba sympy networkx mpmath pyarrow llvmlite; do
    if [ -d "$library" ]; then find "$library" -type d -name tests -prune -exec rm -rf {} +; fi
done
echo "trimmed: $before MB to $(du -sm . | cut -f1) MB"
