"""Making a stack's lock anew from its requirements."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path

from deploy_kit.configs.schema import Stack
from deploy_kit.errors import DeployKitError
from deploy_kit.exit_codes import ExitCode
from deploy_kit.files import read_text, write_atomically
from deploy_kit.stacks.locks import parse_lock


def make_lock(stack: Stack, root: Path) -> tuple[str, bool]:
    """Resolve the stack's .in file with hashes and no addresses; return the lock's text and whether it
    differs from the one there. Nothing is written."""
    lock = root / stack.requirements
    source = lock.with_suffix(".in")
    program = shutil.which("uv")
    if program is None:
        raise DeployKitError(
            "the resolver uv is not installed", remedy="pip install uv", exit_code=ExitCode.FAILURE
        )
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "lock.txt"
        done = subprocess.run(
            [
                program, "pip", "compile", "--quiet", "--generate-hashes", "--no-emit-index-url",
                "--no-header", "--python-version", stack.versions.python,
                "--python-platform", "x86_64-manylinux_2_36",
                source.name, "--output-file", str(output),
            ],
            cwd=source.parent, capture_output=True, text=True, check=False,
        )  # fmt: skip
        if done.returncode != 0:
            raise DeployKitError(
                "the requirements cannot be resolved",
                file=source,
                found=(done.stderr.strip().splitlines() or ["no reason given"])[-1],
                exit_code=ExitCode.CONFIG,
            )
        text = read_text(output)
    parse_lock(text, lock)
    return text, not lock.exists() or text != read_text(lock)


def write_lock(stack: Stack, root: Path, text: str) -> Path:
    """Write the lock, whole or not at all."""
    path = root / stack.requirements
    write_atomically(path, text)
    return path
