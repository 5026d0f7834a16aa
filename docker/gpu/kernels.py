"""Compiles FlashInfer modules for one architecture, ahead of time, where FlashInfer finds them by itself.

    kernels.py PROVIDER ARCHITECTURE MODULE…      e.g. kernels.py /out/flashinfer_jit_cache 12.0f trtllm_comm

PROVIDER becomes a package `flashinfer_jit_cache`: the name under which FlashInfer (since 0.7) looks for
compiled modules, and the interface by which it asks which architecture each was compiled for. A module of
another architecture, or of another FlashInfer version, is then not loaded but compiled at run time. (A file
in FlashInfer's own data/aot would be loaded on every architecture.) MAX_JOBS bounds the compiler's
processes. An older FlashInfer gets no provider: said, not an error.
"""

from __future__ import annotations

import importlib
import json
import os
import re
import shutil
import sys
import tempfile
import time
from pathlib import Path

# Each module's maker in FlashInfer. trtllm_utils holds the delay kernel that FlashInfer's tuner launches
# before it times a candidate: without it, tuning the PCIe IPC all-reduce compiles at the first start.
MODULES = {
    "pcie_ipc_comm": "flashinfer.jit.comm:gen_pcie_ipc_comm_module",
    "pcie_ipc_ag_rs": "flashinfer.jit.comm:gen_pcie_ipc_ag_rs_module",
    "trtllm_comm": "flashinfer.jit.comm:gen_trtllm_comm_module",
    "trtllm_utils": "flashinfer.jit.tllm_utils:gen_trtllm_utils_module",
}
PACKAGE = '''"""FlashInfer modules compiled when this image was built (deploy-kit): docs/images.md."""

import json
from pathlib import Path
from types import SimpleNamespace

_HERE = Path(__file__).parent
_BUILT = json.loads((_HERE / "built.json").read_text())
__version__ = _BUILT["flashinfer"]


def get_jit_cache_dir():
    return str(_HERE)


def get_jit_cache_providers():
    """One provider for each architecture."""
    return tuple(
        SimpleNamespace(
            provider_id=f"deploy-kit-{architecture}",
            distribution="deploy-kit",
            version=__version__,
            jit_cache_dir=str(_HERE / architecture),
            cuda_architectures=(architecture,),
            modules=tuple(modules),
        )
        for architecture, modules in _BUILT["architectures"].items()
    )
'''


def provider_name(architecture: str) -> str:
    """Return FlashInfer's own spelling of an architecture.

    >>> provider_name("12.0f")
    'sm120f'
    """
    found = re.fullmatch(r"(\d+)\.(\d[af]?)", architecture)
    if found is None:
        sys.exit(f"kernels: no such architecture: found {architecture} (allowed: for example 12.0f, 9.0a)")
    return f"sm{found[1]}{found[2]}"


def main(provider: Path, architecture: str, names: list[str]) -> None:
    """Compile each module and put it, with its compile time in seconds, into the provider."""
    unknown = sorted(set(names) - set(MODULES))
    if unknown:
        sys.exit(f"kernels: no such module: found {', '.join(unknown)} (allowed: {', '.join(MODULES)})")
    target = provider_name(architecture)
    with tempfile.TemporaryDirectory() as workspace:
        os.environ["FLASHINFER_CUDA_ARCH_LIST"] = architecture
        os.environ["FLASHINFER_WORKSPACE_BASE"] = workspace
        from flashinfer.jit import env as flashinfer_environment
        from flashinfer.version import __version__ as version

        if not hasattr(flashinfer_environment, "AOTProvider"):
            print(f"kernels: FlashInfer {version} has no providers; its modules compile at the first start")
            return
        manifest = provider / "built.json"
        provider.mkdir(parents=True, exist_ok=True)
        built = (
            json.loads(manifest.read_text())
            if manifest.exists()
            else {"flashinfer": version, "architectures": {}}
        )
        modules = built["architectures"].setdefault(target, {})
        for name in names:
            started = time.monotonic()
            where, _, maker = MODULES[name].partition(":")
            spec = getattr(importlib.import_module(where), maker)()
            spec.build(verbose=False)
            folder = provider / target / spec.name
            folder.mkdir(parents=True, exist_ok=True)
            shutil.copy2(spec.jit_library_path, folder / f"{spec.name}.so")
            modules[spec.name] = {"compile_seconds": round(time.monotonic() - started)}
            print(f"kernels: {spec.name} for {target}: {modules[spec.name]['compile_seconds']} s", flush=True)
        (provider / "__init__.py").write_text(PACKAGE)
        manifest.write_text(json.dumps(built, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    if len(sys.argv) < 4:
        sys.exit("usage: kernels.py PROVIDER ARCHITECTURE MODULE…")
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3:])
