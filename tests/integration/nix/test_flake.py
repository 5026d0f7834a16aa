"""flake.nix with a stand-in for nixpkgs: evaluation, checks, app, lock. Real nixpkgs is not built here."""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
import tarfile
import tomllib
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
    for name in ("flake.nix", "flake.lock", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder)
    for name in ("configs", "deploy_kit", "docker", "requirements", "tests/unit"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(ROOT / "monitoring/prometheus", folder / "monitoring/prometheus")
    shutil.copytree(ROOT / "docs/receipts", folder / "docs/receipts")
    shutil.copy(ROOT / "docs/levers.md", folder / "docs")
    shutil.copytree(STUB, folder / "stub")
    write_tools(folder / "stub/tools")
    return folder


def write_tools(folder: Path) -> None:
    """The programs that the flake's checks run, as scripts that call this environment's own."""
    folder.mkdir()
    ruff = Path(sys.executable).parent / "ruff"
    tools = {
        "tested-python": sys.executable,
        "ruff": str(ruff) if ruff.exists() else shutil.which("ruff"),
        "promtool": shutil.which("promtool"),
    }
    for name, program in tools.items():
        script = folder / name
        run = f"exec {program}" if program else f"echo '{name} is not here: NOT run, a stand-in' >&2 #"
        script.write_text(f'#!/bin/sh\n{run} "$@"\n')
        script.chmod(0o755)


def nix(folder: Path, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "NIX_REMOTE": "local", "NIX_CONFIG": CONFIG, "HOME": str(folder / "home")}
    (folder / "home").mkdir(exist_ok=True)
    done = subprocess.run(
        ["nix", *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    if check:
        assert done.returncode == 0, done.stderr[-3000:]
    return done


def stubbed(folder: Path) -> list[str]:
    return ["--override-input", "nixpkgs", f"path:{folder}/stub", "--no-write-lock-file"]


def test_the_flake_evaluates_and_its_checks_build(copy: Path) -> None:
    """The checks run this environment's pytest and ruff for real, in Nix's builds."""
    nix(copy, "flake", "check", f"path:{copy}", *stubbed(copy))


@pytest.mark.parametrize(
    ("check", "file", "added", "words"),
    [
        ("format", "deploy_kit/errors.py", "x  =  1\n", "would be reformatted"),
        (
            "unit",
            "tests/unit/stacks/test_stacks.py",
            "\n\ndef test_that_fails() -> None:\n    assert False\n",
            "1 failed",
        ),
    ],
)
def test_a_check_that_must_fail_does(
    copy: Path, tmp_path: Path, check: str, file: str, added: str, words: str
) -> None:
    folder = tmp_path / "flake"
    shutil.copytree(copy, folder)
    changed = folder / file
    changed.write_text(changed.read_text() + added)
    target = f"path:{folder}#checks.{platform.machine()}-linux.{check}"
    done = nix(folder, "build", "--no-link", "--print-build-logs", target, *stubbed(folder), check=False)
    assert done.returncode != 0
    assert words in done.stderr, done.stderr[-2000:]


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


@pytest.fixture(scope="module")
def with_wheels(copy: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The copy with the wheels of requirements/runtime.txt, as docs/images.md says to fetch them."""
    folder = tmp_path_factory.mktemp("with-wheels") / "flake"
    shutil.copytree(copy, folder)
    fetched = subprocess.run(
        [
            sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--require-hashes",
            "--only-binary", ":all:", "-r", str(folder / "requirements/runtime.txt"),
            "-d", str(folder / "wheels"),
        ],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if fetched.returncode != 0:
        pytest.skip(f"no package index answers: {fetched.stderr.strip().splitlines()[-1]}")
    return folder


def test_an_image_without_its_wheels_says_what_to_fetch(copy: Path) -> None:
    done = nix(copy, "build", "--no-link", f"path:{copy}#exporter-image", *stubbed(copy), check=False)
    assert done.returncode != 0
    assert "there is no folder wheels/" in done.stderr
    assert "runtime.txt" in done.stderr


def test_the_exporter_s_image_holds_the_locked_packages_and_its_labels(with_wheels: Path) -> None:
    out = with_wheels / "image"
    nix(
        with_wheels,
        "build",
        "--out-link",
        str(out),
        f"path:{with_wheels}#exporter-image",
        *stubbed(with_wheels),
    )
    stack = tomllib.loads((ROOT / "configs/stacks/current.toml").read_text())
    with tarfile.open(out) as image:
        manifest = json.load(image.extractfile("manifest.json"))[0]  # type: ignore[arg-type]
        config = json.load(image.extractfile("config.json"))["config"]  # type: ignore[arg-type]
        with tarfile.open(fileobj=image.extractfile("layer.tar")) as layer:
            names = layer.getnames()
    assert manifest["RepoTags"] == [f"deploy-kit/exporter:{stack['image'].partition(':')[2]}"]
    assert config["User"] == "10001:10001"
    assert config["Labels"]["io.deploy-kit.stack"] == "current"
    assert config["Labels"]["io.deploy-kit.sglang"] == stack["versions"]["sglang"]
    assert config["Labels"]["io.deploy-kit.torch"] == stack["versions"]["torch"]
    assert any(name.endswith("site-packages/deploy_kit/exporter/server.py") for name in names)
    assert "./opt/deploy-kit/configs/stacks/current.toml" in names
    for line in (ROOT / "requirements/runtime.txt").read_text().splitlines():
        name, _, version = line.partition(" ")[0].partition("==")
        if version and ";" not in line:
            info = f"{name.replace('-', '_')}-{version}.dist-info"
            assert any(info in entry for entry in names), info


def test_a_wheel_with_another_hash_is_refused(with_wheels: Path, tmp_path: Path) -> None:
    folder = tmp_path / "flake"
    shutil.copytree(with_wheels, folder, symlinks=True)
    wheel = next((folder / "wheels").glob("rich-*.whl"))
    wheel.write_bytes(wheel.read_bytes() + b"x")
    done = nix(folder, "build", "--no-link", f"path:{folder}#exporter-image", *stubbed(folder), check=False)
    assert done.returncode != 0
    assert "HASHES" in done.stderr
    assert "rich" in done.stderr


@pytest.mark.parametrize("image", ["exporter", "rehearsal"])
def test_both_images_evaluate(copy: Path, image: str) -> None:
    """Nothing is built: the rehearsal image's wheels are two gigabytes."""
    done = nix(copy, "eval", "--raw", f"path:{copy}#{image}-image.drvPath", *stubbed(copy))
    assert done.stdout.endswith(".drv")


def test_the_shell_has_what_the_commands_need(copy: Path) -> None:
    done = nix(
        copy,
        "develop",
        f"path:{copy}",
        *stubbed(copy),
        "--command",
        "sh",
        "-c",
        "echo $DEPLOY_KIT_SGLANG_VERSION",
        check=False,
    )
    stack = tomllib.loads((ROOT / "configs/stacks/current.toml").read_text())
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.strip() == stack["versions"]["sglang"]
