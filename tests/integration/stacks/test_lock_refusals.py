"""What a real pip says of a wrong hash and of a missing wheel becomes an error that names the lock's line,
found and allowed; and nothing is installed."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from deploy_kit.configs.catalog import Catalog
from deploy_kit.configs.schema import Stack
from deploy_kit.deploy.stack_images import build_target, explain
from deploy_kit.errors import DeployKitError
from deploy_kit.exit_codes import ExitCode

ROOT = Path(__file__).parents[3]


def make_wheel(folder: Path, name: str, version: str) -> str:
    """A wheel of one module; returns its hash."""
    path = folder / f"{name}-{version}-py3-none-any.whl"
    info = f"{name}-{version}.dist-info"
    with zipfile.ZipFile(path, "w") as wheel:
        wheel.writestr(f"{name}.py", f"version = {version!r}\n")
        wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", f"{name}.py,,\n{info}/METADATA,,\n{info}/WHEEL,,\n{info}/RECORD,,\n")
    return hashlib.sha256(path.read_bytes()).hexdigest()


def install(folder: Path, lock: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [
            sys.executable, "-m", "pip", "install", "--no-deps", "--require-hashes", "--only-binary", ":all:",
            "--no-index", "--find-links", str(folder), "--target", str(folder / "site"), "-r", str(lock),
        ],
        capture_output=True, text=True, check=False,
        env={"PATH": "/usr/bin:/bin", "PIP_CONFIG_FILE": "/dev/null"},
    )  # fmt: skip


@pytest.fixture
def wheels(tmp_path: Path) -> tuple[Path, Path, str]:
    good = make_wheel(tmp_path, "one_thing", "1.0")
    lock = tmp_path / "stack.txt"
    lock.write_text(f"one-thing==1.0 \\\n    --hash=sha256:{good}\n")
    return tmp_path, lock, good


def test_the_right_hash_installs(wheels: tuple[Path, Path, str]) -> None:
    folder, lock, _ = wheels
    done = install(folder, lock)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (folder / "site/one_thing.py").is_file()
    assert explain(done.stdout + done.stderr, lock) is None


@pytest.mark.parametrize("prefix", ["", "#15 12.34 "])
def test_a_wrong_hash(wheels: tuple[Path, Path, str], prefix: str) -> None:
    folder, lock, good = wheels
    lock.write_text("# a lock\n" + lock.read_text().replace(good, "ab" * 32))
    done = install(folder, lock)
    assert done.returncode != 0
    assert not (folder / "site").exists()
    log = "".join(prefix + line + "\n" for line in (done.stdout + done.stderr).splitlines())
    error = explain(log, lock)
    assert error is not None
    assert error.file == str(lock)
    assert error.key == "line 2: one-thing==1.0"
    assert error.found == f"sha256:{good}"
    assert "ab" * 32 in str(error.allowed)


def test_a_missing_wheel(wheels: tuple[Path, Path, str]) -> None:
    folder, lock, _ = wheels
    next(folder.glob("*.whl")).unlink()
    done = install(folder, lock)
    assert done.returncode != 0
    error = explain(done.stdout + done.stderr, lock)
    assert error is not None
    assert (error.file, error.key, error.found) == (str(lock), "line 1: one-thing==1.0", "none")


@pytest.mark.parametrize(
    ("file", "old", "new", "key", "found"),
    [
        (
            "docker/Dockerfile",
            "@sha256:3783",
            "@sha256:3784",
            "base",
            "debian:bookworm-20260918-slim@sha256:3784",
        ),
        ("docker/requirements/current.txt", "torch==2.14.1 ", "torch==2.14.0 ", "torch", "torch==2.14.0"),
        (
            "docker/patches/current/0001-sm120-allreduce-fusion.patch",
            "+++ b/",
            "+++ c/",
            "docker/patches",
            "sha256",
        ),
    ],
)
def test_nothing_is_built_from_a_stack_that_disagrees(
    tmp_path: Path, file: str, old: str, new: str, key: str, found: str
) -> None:
    """Before Docker is asked: a wrong base, pin or patch would show after most of an hour, or never."""
    for folder in ("configs", "docker/requirements", "docker/patches"):
        shutil.copytree(ROOT / folder, tmp_path / folder)
    for name in ("docker/Dockerfile", "flake.nix"):
        shutil.copy(ROOT / name, tmp_path / name)
    text = (tmp_path / file).read_text()
    assert old in text
    (tmp_path / file).write_text(text.replace(old, new))
    stack = Catalog(tmp_path / "configs").load(Stack, "current")
    with pytest.raises(DeployKitError, match="disagree") as caught:
        build_target(stack, tmp_path, "slice", tag="deploy-kit/never:built")
    assert caught.value.exit_code is ExitCode.VERDICT_FAIL
    assert str(caught.value.key).startswith(key)
    assert found in str(caught.value.found)
    assert caught.value.allowed


def test_a_lock_without_a_hash_installs_nothing(wheels: tuple[Path, Path, str]) -> None:
    folder, lock, _ = wheels
    lock.write_text("one-thing==1.0\n")
    assert install(folder, lock).returncode != 0
    assert not (folder / "site").exists()


@pytest.mark.parametrize("stack", ["current", "rollback"])
def test_the_layers_take_every_package_once(tmp_path: Path, stack: str) -> None:
    """The shell script's groups part the lock: run with a stand-in for pip that keeps what it was given."""
    lock = ROOT / f"docker/requirements/{stack}.txt"
    taken: dict[str, list[str]] = {}
    for one in ("cuda", "torch", "kernels", "others"):
        kept = tmp_path / one
        stand_in = tmp_path / "python"
        stand_in.write_text(f'#!/bin/sh\nfor last; do :; done\ncp "$last" {kept}\n')
        stand_in.chmod(0o755)
        subprocess.run(["sh", str(ROOT / "docker/gpu/install.sh"), str(stand_in), str(lock), one], check=True)
        taken[one] = [line.partition("==")[0] for line in kept.read_text().splitlines() if "==" in line]
        assert kept.read_text().count("--hash=sha256:") >= len(taken[one])
    everything = [
        line.partition("==")[0] for line in lock.read_text().splitlines() if "==" in line and line[0] != " "
    ]
    assert sorted(name for names in taken.values() for name in names) == sorted(everything)
    assert all(taken.values())


def test_an_unknown_group_or_package_is_named(tmp_path: Path) -> None:
    lock = tmp_path / "lock.txt"
    lock.write_text("a==1 --hash=sha256:0\n")
    done = subprocess.run(
        ["sh", str(ROOT / "docker/gpu/install.sh"), "python3", str(lock), "cudda"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert "cudda (allowed: cuda, torch, kernels, others)" in done.stderr
    cut = subprocess.run(
        [sys.executable, str(ROOT / "docker/gpu/cut.py"), str(lock), "a", "b"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert cut.returncode == 1
    assert f"{lock}: no such package: found b" in cut.stderr
