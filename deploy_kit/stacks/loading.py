"""Whether FlashInfer loads its communication modules without compiling: asked of FlashInfer itself.

A process of the engine's Python calls the functions by which the engine gets each module, for one
architecture, with stand-ins in the place of every compiler. A stand-in writes down how it was called and
fails, so a module that would be compiled is an error here instead of minutes at the first start. No kernel
runs and no GPU is needed: where there is no driver, the link stub of the image's CUDA home takes its place,
so that modules that need libcuda.so.1 load.
"""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from deploy_kit.stacks.verify import Check

# Module → where the engine gets it: FlashInfer's own function, which builds what it cannot load.
GETTERS = {
    "pcie_ipc_ag_rs": "flashinfer.comm.pcie_ipc_collectives._ag_rs_module:get_pcie_ipc_ag_rs_module",
    "pcie_ipc_comm": "flashinfer.comm.pcie_ipc_ar:get_pcie_ipc_comm_module",
    "trtllm_comm": "flashinfer.comm.trtllm_ar:get_trtllm_comm_module",
    "trtllm_utils": "flashinfer.tllm_utils:get_trtllm_utils_module",
}
COMPILERS = ("nvcc", "ninja", "gcc", "g++", "cc", "c++", "clang", "clang++")
# Asking a compiler for its version compiles nothing.
_QUESTIONS = frozenset({"--version", "-V", "-dumpversion", "-dumpfullversion", "--list-gpu-arch"})
# The last line it prints is the answer; what libraries print before it is theirs.
_PROGRAM = """
import importlib, json, sys
answer = {}
for name, getter in json.loads(sys.argv[1]).items():
    try:
        where, _, function = getter.partition(":")
        getattr(importlib.import_module(where), function)()
        answer[name] = "loaded"
    except BaseException as error:
        answer[name] = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0][:160]}"
print()
print(json.dumps(answer))
"""
TIMEOUT_SECONDS = 600


@dataclass(frozen=True)
class Loading:
    """What happened: each module's outcome ("loaded" or the reason) and every call of a compiler."""

    outcomes: Mapping[str, str]
    compiler_calls: tuple[str, ...]


def flashinfer_architecture(name: str) -> str:
    """Given FlashInfer's name of an architecture, return it as FLASHINFER_CUDA_ARCH_LIST has it.

    >>> flashinfer_architecture("sm120f"), flashinfer_architecture("sm90a")
    ('12.0f', '9.0a')
    """
    digits = name.removeprefix("sm").rstrip("af")
    return f"{digits[:-1]}.{digits[-1]}{name.removeprefix('sm')[len(digits) :]}"


def read_loading(python: Path, architecture: str, modules: Sequence[str], cuda_home: Path) -> Loading:
    """Given the engine's Python, an architecture (sm120f) and its modules, let FlashInfer load each with no
    compiler that works, and return what happened."""
    with tempfile.TemporaryDirectory(prefix="deploy-kit-loading-") as name:
        folder = Path(name)
        calls = folder / "calls"
        calls.touch()
        home = make_compilers(folder, calls)
        libraries = [] if driver_is_there() else [str(link_stub(cuda_home, folder))]
        environment = {
            "PATH": f"{home / 'bin'}:/usr/bin:/bin",
            "HOME": name,
            "CUDA_HOME": str(home),
            "FLASHINFER_CUDA_ARCH_LIST": flashinfer_architecture(architecture),
            "FLASHINFER_WORKSPACE_BASE": name,
            "PYTHONDONTWRITEBYTECODE": "1",
            "LD_LIBRARY_PATH": ":".join([*libraries, os.environ.get("LD_LIBRARY_PATH", "")]).strip(":"),
        }
        wanted = {module: GETTERS[module] for module in modules}
        try:
            done = subprocess.run(
                [str(python), "-c", _PROGRAM, json.dumps(wanted)],
                capture_output=True,
                text=True,
                check=False,
                env=environment,
                timeout=TIMEOUT_SECONDS,
            )
            said = (done.stdout.strip().splitlines() or [""])[-1]
            reason = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1][:160]
        except subprocess.TimeoutExpired:
            said, reason = "", f"no answer in {TIMEOUT_SECONDS} s"
        try:
            outcomes = {module: str(word) for module, word in json.loads(said).items()}
        except (ValueError, AttributeError):
            outcomes = dict.fromkeys(modules, f"unknown: {reason}")
        return Loading(outcomes, tuple(calls.read_text().splitlines()))


def make_compilers(folder: Path, calls: Path) -> Path:
    """Put a stand-in for every compiler into folder/cuda/bin that writes its call into a file and fails;
    return that CUDA home."""
    home = folder / "cuda"
    (home / "bin").mkdir(parents=True)
    for name in COMPILERS:
        stand_in = home / "bin" / name
        stand_in.write_text(f"#!/bin/sh\necho \"{name} $*\" >>'{calls}'\nexit 97\n")
        stand_in.chmod(0o755)
    return home


def driver_is_there() -> bool:
    """Whether this machine's loader finds NVIDIA's driver library."""
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    return True


def link_stub(cuda_home: Path, folder: Path) -> Path:
    """Give the CUDA home's link stub the driver's name, in a folder of its own; return that folder."""
    place = folder / "driver"
    place.mkdir()
    (place / "libcuda.so.1").symlink_to(cuda_home / "lib64/stubs/libcuda.so")
    return place


def compiles(calls: Sequence[str]) -> list[str]:
    """Given calls of compilers, return those that ask for more than a version.

    >>> compiles(["nvcc --version", "ninja -v -C x"])
    ['ninja -v -C x']
    """
    return [call for call in calls if not call.split()[1:] or not set(call.split()[1:]) <= _QUESTIONS]


def check_loading(architecture: str, loading: Loading) -> Iterator[Check]:
    """Given what happened for one architecture, yield two checks: every module loaded, nothing compiled."""
    wrong = [f"{name}: {outcome}" for name, outcome in loading.outcomes.items() if outcome != "loaded"]
    names = ", ".join(loading.outcomes)
    yield Check(
        f"FlashInfer loads for {architecture}",
        not wrong and bool(loading.outcomes),
        f"found {'; '.join(wrong) or names or 'none'}, allowed every module loaded",
    )
    compiled = compiles(loading.compiler_calls)
    yield Check(
        f"nothing compiles for {architecture}",
        not compiled,
        f"found {len(compiled)} calls of a compiler"
        + (f" ({compiled[0][:120]})" if compiled else "")
        + ", allowed none",
    )
