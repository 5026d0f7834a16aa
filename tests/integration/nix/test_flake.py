"""flake.nix with a stand-in for nixpkgs: evaluation, checks, app, lock. Real nixpkgs is not built here."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
STUB = Path(__file__).parent / "stub-nixpkgs"
CONFIG = """
experimental-features = nix-command flakes
sandbox = false
build-users-group =
substituters =
flake-registry =
"""

pytestmark = pytest.mark.skipif(shutil.which("nix") is None, reason="nix is not installed (Debian: nix-bin)")


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy without .git and .venv: Nix copies the whole folder into its store."""
    folder = tmp_path_factory.mktemp("flake")
    for name in ("flake.nix", "flake.lock"):
        shutil.copy(ROOT / name, folder)
    shutil.copytree(ROOT / "configs", folder / "configs")
    shutil.copytree(ROOT / "monitoring/prometheus", folder / "monitoring/prometheus")
    shutil.copytree(STUB, folder / "stub")
    return folder


def nix(folder: Path, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "NIX_REMOTE": "local", "NIX_CONFIG": CONFIG, "HOME": str(folder / "home")}
    (folder / "home").mkdir(exist_ok=True)
    done = subprocess.run(
        ["nix", *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    if check:
        assert done.returncode == 0, done.stderr[-3000:]
    return done


def stubbed(folder: Path) -> list[str]:
    return ["--override-input", "nixpkgs", f"path:{folder}/stub", "--no-write-lock-file"]


def test_the_flake_evaluates_and_its_checks_build(copy: Path) -> None:
    nix(copy, "flake", "check", f"path:{copy}", *stubbed(copy))


def test_it_reads_the_pins_from_the_stacks(copy: Path) -> None:
    done = nix(copy, "eval", "--json", f"path:{copy}#stacks.current.versions", *stubbed(copy))
    versions = json.loads(done.stdout)
    assert versions["sglang"] in (ROOT / "configs/stacks/current.toml").read_text()


def test_a_typo_in_a_stack_fails_the_check(copy: Path, tmp_path: Path) -> None:
    folder = tmp_path / "flake"
    shutil.copytree(copy, folder)
    stack = folder / "configs/stacks/rehearsal.toml"
    stack.write_text(stack.read_text().replace('python = "3.11"', 'pyhton = "3.11"'))
    done = nix(folder, "flake", "check", f"path:{folder}", *stubbed(folder), check=False)
    assert done.returncode != 0
    assert "python" in done.stderr


def test_the_app_says_what_is_missing(copy: Path) -> None:
    done = nix(copy, "run", f"path:{copy}", *stubbed(copy), check=False)
    assert done.returncode == 1
    assert "make dev" in done.stderr


def test_the_lock_fits_the_flake(copy: Path) -> None:
    """`--no-update-lock-file` refuses when flake.nix asks for anything the lock does not hold."""
    done = nix(copy, "flake", "metadata", "--json", f"path:{copy}", "--no-update-lock-file")
    locked = json.loads(done.stdout)["locks"]["nodes"]["nixpkgs"]["locked"]
    assert locked["rev"] == json.loads((ROOT / "flake.lock").read_text())["nodes"]["nixpkgs"]["locked"]["rev"]
