"""Whether an installed engine is exactly what its stack says: the assertions of the image's build.

Each function compares what was read with what is pinned and returns one `Check` whose detail is a sentence
that names what, found and allowed. Reading is in `read_*`; nothing here needs a GPU.
"""

from __future__ import annotations

import importlib.metadata
import json
import mmap
import os
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from deploy_kit.configs.schema import Stack
from deploy_kit.stacks.locks import PACKAGES, Pin, normalised
from deploy_kit.stacks.patches import state_of
from deploy_kit.stacks.verify import Check

PLUGIN_GROUP = "sglang.srt.plugins"
PLUGIN = "deploy_kit_telemetry"
# In the environment beside the lock: what made it, and ourselves.
OWN_PACKAGES = frozenset({"deploy-kit", "deploy-kit-rehearsal", "pip"})
_NCCL = re.compile(r"^libnccl\.so(\.\d+)*$")
# FlashInfer's modules that must be compiled, by a stack's architecture: both ways of PCIe IPC with what
# their tuner launches (trtllm_utils), and for SM120 TRT-LLM's all-reduce.
_PCIE_IPC = ("pcie_ipc_ag_rs", "pcie_ipc_comm")
MODULES = {
    "12.0": (*_PCIE_IPC, "trtllm_comm", "trtllm_utils"),
    "9.0": (*_PCIE_IPC, "trtllm_utils"),
}
# What a build may leave behind and must not: (folder, what it is).
CACHES = (
    (".cache/pip", "pip's cache"),
    (".cache/flashinfer", "FlashInfer's compiler cache"),
    (".cache/tvm-ffi", "the TVM FFI compiler cache"),
    (".triton", "Triton's compiler cache"),
    (".nv", "the driver's compiler cache"),
)


def read_installed(site: Path) -> dict[str, str]:
    """Return the version of every distribution in a site-packages folder, by normalised name."""
    return {
        normalised(found.metadata["Name"]): found.version
        for found in importlib.metadata.distributions(path=[str(site)])
    }


def check_pins(
    lock: Mapping[str, Pin], installed: Mapping[str, str], *, only: Iterable[str] | None = None
) -> Iterator[Check]:
    """Given a lock and what is installed, yield one check: every pin is there in its version, nothing else
    is. `only` limits it to some packages, for an environment that holds a part of the lock."""
    wanted = {name: lock[name] for name in (lock if only is None else only) if name in lock}
    wrong = [
        f"{name}: found {installed.get(name, 'none')}, allowed {pin.version}"
        for name, pin in sorted(wanted.items())
        if not _is(installed.get(name), pin.version)
    ]
    yield Check(
        "versions",
        not wrong,
        "; ".join(wrong) if wrong else f"{len(wanted)} packages are installed as pinned",
    )
    foreign = sorted(installed.keys() - wanted.keys() - OWN_PACKAGES)
    yield Check(
        "nothing unpinned",
        not foreign,
        f"found {', '.join(f'{name} {installed[name]}' for name in foreign)}, allowed only what the lock pins"
        if foreign
        else f"beside the lock only {', '.join(sorted(OWN_PACKAGES & installed.keys())) or 'nothing'}",
    )


def check_stack_versions(
    stack: Stack,
    installed: Mapping[str, str],
    *,
    python: str = f"{sys.version_info[0]}.{sys.version_info[1]}",
) -> Iterator[Check]:
    """Given a stack, what is installed and Python's version, yield one check for each version it names."""
    yield Check("python", python == stack.versions.python, _found(python, stack.versions.python))
    for key, package in PACKAGES.items():
        wanted = getattr(stack.versions, key)
        found = installed.get(package)
        if wanted is None or (found is None and key == "cuda"):
            continue
        same = found is not None and (_is(found, wanted) or found.startswith(f"{wanted}."))
        yield Check(key, same, f"{_found(found, wanted)} (package {package})")


def find_nccl(roots: Iterable[Path]) -> list[Path]:
    """Return every file called libnccl.so* under these folders. A link to one of them is not a second one."""
    files: set[Path] = set()
    for root in roots:
        for folder, _, names in os.walk(root):
            files |= {(Path(folder) / name).resolve() for name in names if _NCCL.match(name)}
    return sorted(files)


def check_one_nccl(found: list[Path]) -> Check:
    """Given the NCCL libraries there are, refuse none and more than one: which one loads would be chance."""
    listed = ", ".join(map(str, found)) or "none"
    return Check(
        "one NCCL", len(found) == 1, f"libnccl.so*: found {len(found)} ({listed}), allowed exactly 1"
    )


def check_nccl_variables(names: Iterable[str], library: Path | None) -> Check:
    """Given the NCCL variables that levers and hosts set, refuse one whose name is not in NCCL's library:
    NCCL ignores a variable it does not know, and the lever would change nothing."""
    wanted = sorted(set(names))
    if library is None:
        return Check("NCCL's variables", False, "unknown: there is not exactly one library to look in")
    with library.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        absent = [name for name in wanted if data.find(name.encode() + b"\0") < 0]
    found = f"{', '.join(absent)} unknown to it" if absent else f"{', '.join(wanted) or 'none'}"
    return Check("NCCL's variables", not absent, f"found {found}, allowed those that {library.name} reads")


def check_nccl_version(stack: Stack, reported: str) -> Check:
    """Given what `torch.cuda.nccl.version()` said, compare it with the stack's version."""
    wanted = stack.versions.nccl or "none"
    return Check("NCCL as torch loads it", reported == wanted, _found(reported, wanted))


def read_torch_nccl(python: Path) -> str:
    """Return the version of the NCCL that torch of this Python loads, or the reason it could not be asked."""
    return _ask(python, "import torch; print('.'.join(map(str, torch.cuda.nccl.version())))")


def check_patches_applied(stack: Stack, root: Path, site: Path) -> Iterator[Check]:
    """Given a stack and an installed SGLang, yield two checks a patch: it is applied exactly (it would come
    off again with zero fuzz), and every line it adds stands in code that compiles."""
    for patch in stack.patches:
        state = state_of(patch, stack, root, site)
        yield Check(
            patch.file, state.state == "applied", f"found {state.state} ({state.why}), allowed applied"
        )
        missing = list(_missing_effect((root / patch.file).read_text(), site))
        yield Check(
            f"effect of {patch.lever}",
            not missing,
            "; ".join(missing) or "every added line is in the installed code, which compiles",
        )


def added_lines(patch: str) -> dict[str, list[str]]:
    """Given a patch, return the lines it adds, by file.

    >>> added_lines("--- a/x.py\\n+++ b/x.py\\n@@ -1 +1,2 @@\\n one\\n+two\\n")
    {'x.py': ['two']}
    """
    added: dict[str, list[str]] = {}
    file = ""
    for line in patch.splitlines():
        if line.startswith("+++ b/"):
            file = line.removeprefix("+++ b/").split("\t")[0]
            added[file] = []
        elif line.startswith("+") and file:
            added[file].append(line[1:])
    return added


def _missing_effect(patch: str, site: Path) -> Iterator[str]:
    for file, lines in added_lines(patch).items():
        try:
            text = (site / file).read_text()
            compile(text, file, "exec")
        except (OSError, SyntaxError) as error:
            yield f"{file}: found {type(error).__name__}: {error}, allowed code that compiles"
            continue
        there = text.splitlines()
        absent = [line for line in lines if line not in there]
        if absent:
            yield f"{file}: {len(absent)} added lines missing: found no {absent[0].strip()!r}, allowed all"


def read_plugins(site: Path) -> list[str]:
    """Return the names of the plug-ins that SGLang's entry-point group has in a site-packages folder."""
    return sorted(
        entry.name
        for found in importlib.metadata.distributions(path=[str(site)])
        for entry in found.entry_points
        if entry.group == PLUGIN_GROUP
    )


def check_plugin(names: list[str], load: str) -> Check:
    """Given the plug-ins found and what loading ours said ("ok" or the reason), refuse a missing one."""
    good = PLUGIN in names and load == "ok"
    said = f"found {', '.join(names) or 'none'} in {PLUGIN_GROUP}, allowed {PLUGIN} among them"
    return Check("plug-in", good, said if PLUGIN not in names or good else f"{PLUGIN} does not load: {load}")


def read_plugin_load(python: Path) -> str:
    """Return "ok" when our plug-in's entry point loads in this Python, else the reason."""
    return _ask(
        python,
        "from importlib.metadata import entry_points as e; "
        f"e(group={PLUGIN_GROUP!r})[{PLUGIN!r}].load(); print('ok')",
    )


def parse_architectures(cuobjdump: str) -> set[str]:
    """Given the output of `cuobjdump -elf`, return the architectures of the code in it.

    >>> sorted(parse_architectures("arch = sm_120f\\ncode version = [1,8]\\narch = sm_90a"))
    ['sm_120f', 'sm_90a']
    """
    return set(re.findall(r"^arch = (sm_\w+)$", cuobjdump, flags=re.MULTILINE))


def parse_needed(readelf: str) -> list[str]:
    """Given the output of `readelf -d`, return the libraries a file needs.

    >>> parse_needed(" 0x1 (NEEDED)  Shared library: [libcuda.so.1]")
    ['libcuda.so.1']
    """
    return re.findall(r"\(NEEDED\)\s+Shared library: \[([^\]]+)\]", readelf)


def check_module(name: str, architecture: str, found: set[str], needed: Iterable[str]) -> Check:
    """Given a compiled module's architectures and needed libraries, refuse any other architecture than the
    one it is offered for, and one that was linked without the CUDA libraries it calls.

    `architecture` is FlashInfer's spelling (sm120f)."""
    wanted = architecture.replace("sm", "sm_", 1)
    libraries = sorted(needed)
    cuda = [word for word in libraries if word.startswith(("libcudart.so", "libcuda.so"))]
    if found != {wanted}:
        detail = f"code for: found {', '.join(sorted(found)) or 'none'}, allowed {wanted}"
        return Check(f"{name} for {architecture}", False, detail)
    if not any(word.startswith("libcudart.so") for word in cuda):
        detail = f"needed libraries: found {', '.join(libraries) or 'none'}, allowed libcudart.so among them"
        return Check(f"{name} for {architecture}", False, detail)
    return Check(f"{name} for {architecture}", True, f"code for {wanted}; needs {', '.join(cuda)}")


def check_modules_version(stack: Stack, built: Mapping[str, object]) -> Check:
    """Given the compiled modules' manifest, compare the FlashInfer they came from with the stack's."""
    wanted = stack.versions.flashinfer or "none"
    found = str(built.get("flashinfer"))
    return Check("compiled modules", found == wanted, f"FlashInfer: {_found(found, wanted)}")


def check_compiled(stack: Stack, provider: Path, cuobjdump: Path) -> Iterator[Check]:
    """Given the folder of the compiled modules, read each with cuobjdump and readelf and check it."""
    manifest = provider / "built.json"
    if not manifest.is_file():
        yield Check(
            "compiled modules", False, f"found no {manifest}, allowed the modules that kernels.py built"
        )
        return
    built = json.loads(manifest.read_text())
    yield check_modules_version(stack, built)
    for one in stack.architectures:
        capability = one.replace(".", "")
        found = sorted(
            name
            for word, names in built["architectures"].items()
            if re.fullmatch(rf"sm{capability}[af]?", word)
            for name in names
        )
        wanted = MODULES.get(one, ())
        yield Check(
            f"modules for SM{capability}",
            found == list(wanted),
            f"found {', '.join(found) or 'none'}, allowed {', '.join(wanted) or 'none'}",
        )
    for architecture, modules in sorted(built["architectures"].items()):
        for name in sorted(modules):
            library = provider / architecture / name / f"{name}.so"
            code = _run([str(cuobjdump), "-elf", str(library)])
            yield check_module(
                name,
                architecture,
                parse_architectures(code),
                parse_needed(_run(["readelf", "-d", str(library)])),
            )


def read_built(provider: Path) -> dict[str, list[str]]:
    """Return the compiled modules' names by architecture; none where there is no manifest."""
    manifest = provider / "built.json"
    if not manifest.is_file():
        return {}
    architectures = json.loads(manifest.read_text())["architectures"]
    return {architecture: sorted(modules) for architecture, modules in sorted(architectures.items())}


def check_no_caches(homes: Iterable[Path], temporary: Path) -> Check:
    """Given home folders and the temporary folder, refuse what pip and compilers leave behind."""
    left = [
        f"{home / folder} ({what})" for home in homes for folder, what in CACHES if (home / folder).exists()
    ]
    left += [str(path) for path in sorted(temporary.iterdir())] if temporary.is_dir() else []
    return Check("no caches", not left, f"found {', '.join(left) or 'none'}, allowed none")


def _is(found: str | None, wanted: str) -> bool:
    return found is not None and (found == wanted or found.startswith(f"{wanted}+"))


def _found(found: str | None, wanted: str) -> str:
    return f"found {found or 'none'}, allowed {wanted}"


def _ask(python: Path, code: str) -> str:
    done = subprocess.run([str(python), "-c", code], capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return done.stdout.strip()
    return "unknown: " + (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]


def _run(command: list[str]) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout
    except OSError:
        return ""
