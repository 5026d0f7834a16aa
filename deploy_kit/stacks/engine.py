"""Examining one installed engine: every assertion of `installed`, in order, on one Python environment."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from pathlib import Path

from deploy_kit.configs.catalog import Catalog
from deploy_kit.configs.schema import Host, Lever, Stack
from deploy_kit.errors import DeployKitError
from deploy_kit.exit_codes import ExitCode
from deploy_kit.stacks import installed as read
from deploy_kit.stacks.loading import check_loading, read_loading
from deploy_kit.stacks.locks import normalised, read_lock
from deploy_kit.stacks.verify import Check

# Where a second libnccl could be found by the loader.
LIBRARY_ROOTS = ("/opt", "/usr/lib", "/usr/local/lib", "/lib")


def examine(stack: Stack, root: Path, site: Path) -> list[Check]:
    """Given a stack, the folder that holds configs/ and docker/, and the engine's site-packages, return every
    assertion, in order. torch and the plug-in are asked in processes of their own."""
    lock = read_lock(root / stack.requirements)
    found = read.read_installed(site)
    python = Path(sys.executable)
    libraries = read.find_nccl(map(Path, LIBRARY_ROOTS))
    checks = [
        *read.check_pins(lock, found),
        *read.check_stack_versions(stack, found),
        read.check_one_nccl(libraries),
        read.check_nccl_variables(nccl_variables(root), libraries[0] if len(libraries) == 1 else None),
        read.check_nccl_version(stack, read.read_torch_nccl(python)),
        *read.check_patches_applied(stack, root, site),
        read.check_plugin(read.read_plugins(site), read.read_plugin_load(python)),
    ]
    if os.geteuid() == 0:
        # In the build. Who runs the image may not look into /root, and has files of his own in /tmp.
        checks.append(read.check_no_caches([Path("/root"), Path.home()], Path("/tmp")))  # noqa: S108 (it must be empty)
    if stack.patches:
        # The lever that the patch opens needs the modules; a stack without it compiles at its first start.
        cuobjdump = site / "triton/backends/nvidia/bin/cuobjdump"
        provider = site / "flashinfer_jit_cache"
        checks += read.check_compiled(stack, provider, cuobjdump)
        home = Path(os.environ.get("CUDA_HOME", "/opt/cuda"))
        for architecture, modules in read.read_built(provider).items():
            checks += check_loading(architecture, read_loading(python, architecture, modules, home))
    return checks


def nccl_variables(root: Path) -> set[str]:
    """Return the NCCL variables that the levers and the hosts in configs/ set."""
    catalog = Catalog(root / "configs")
    tables = [catalog.load(Lever, name).environment for name in catalog.names(Lever)]
    for name in catalog.names(Host):
        host = catalog.load(Host, name)
        tables += [host.environment, host.nccl]
    return {name for table in tables for name in table if name.startswith("NCCL_")}


def examine_slice(stack: Stack, root: Path, site: Path, packages: Iterable[str]) -> list[Check]:
    """Given a site-packages folder that holds some of the lock's packages only, return the assertions that
    need no others: their versions, and the patches with their effect."""
    lock = read_lock(root / stack.requirements)
    names = [normalised(package) for package in packages]
    unknown = [name for name in names if name not in lock]
    if unknown:
        raise DeployKitError(
            "the lock does not pin a package of the slice",
            file=root / stack.requirements,
            key="--slice",
            found=", ".join(unknown),
            allowed=f"the {len(lock)} packages of the lock",
            exit_code=ExitCode.CONFIG,
        )
    found = read.read_installed(site)
    versions = [
        check
        for check in read.check_stack_versions(stack, found)
        if check.name in ("python", "sglang", "flashinfer")
    ]
    return [
        *read.check_pins(lock, found, only=names),
        *versions,
        *read.check_patches_applied(stack, root, site),
    ]
