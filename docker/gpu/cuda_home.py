"""Makes a CUDA home of links: nvcc of the wheels compiles there, but does not link.

    cuda_home.py SITE_PACKAGES TARGET

TARGET gets bin, include, nvvm, lib64 (every library also under its unversioned name) and
lib64/stubs/libcuda.so. The stub defines the driver's real symbols, so that a linker with --as-needed keeps
the dependency on libcuda.so.1; it is for linking only and never on the run-time library path.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from pathlib import Path


def unversioned(name: str) -> str:
    """Given a library's file name, return the name the linker looks for.

    >>> unversioned("libcudart.so.13.0.96")
    'libcudart.so'
    """
    return name.partition(".so")[0] + ".so"


def driver_symbols(preprocessed: str) -> list[str]:
    """Given cuda.h after the preprocessor, return the functions it declares.

    >>> driver_symbols("CUresult cuInit(unsigned int Flags); CUresult cuMemAlloc_v2 (int x);")
    ['cuInit', 'cuMemAlloc_v2']
    """
    return sorted(set(re.findall(r"\bCUresult\s+(?:__\w+\s+)?(cu[A-Z]\w*)\s*\(", preprocessed)))


def make(site: Path, target: Path) -> None:
    """Make the links and the stub; fails when the wheels hold no compiler."""
    wheels = site / "nvidia/cu13"
    if not (wheels / "bin/nvcc").is_file():
        sys.exit(f"cuda_home: no compiler: {wheels}/bin/nvcc is not there (allowed: nvidia-cuda-nvcc)")
    stubs = target / "lib64/stubs"
    stubs.mkdir(parents=True)
    for name in ("bin", "include", "nvvm"):
        (target / name).symlink_to(wheels / name)
    for library in sorted((wheels / "lib").iterdir()):
        if not re.search(r"\.so(\.|$)|\.a$", library.name):
            continue
        (target / "lib64" / library.name).symlink_to(library)
        short = target / "lib64" / unversioned(library.name)
        if ".so." in library.name and not short.is_symlink():
            short.symlink_to(library)
    include = ["-I", str(wheels / "include")]
    header = wheels / "include/cuda.h"
    shown = subprocess.run(
        ["gcc", "-E", *include, str(header)], capture_output=True, text=True, check=True
    ).stdout
    symbols = driver_symbols(shown)
    if "cuMemCreate" not in symbols:
        sys.exit(f"cuda_home: {header} declares no cuMemCreate (found {len(symbols)} functions)")
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "stub.c"
        source.write_text("".join(f"int {name}(void) {{ return 999; }}\n" for name in symbols))
        subprocess.run(
            [
                "gcc",
                "-shared",
                "-fPIC",
                "-Wl,-soname,libcuda.so.1",
                "-o",
                str(stubs / "libcuda.so"),
                str(source),
            ],
            check=True,
        )
    print(f"cuda home: {len(list((target / 'lib64').iterdir()))} links, a stub of {len(symbols)} functions")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("usage: cuda_home.py SITE_PACKAGES TARGET")
    make(Path(sys.argv[1]), Path(sys.argv[2]))
