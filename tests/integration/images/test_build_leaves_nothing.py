"""The slice of the GPU image, built with secrets that carry a marker: the marker is in no layer, no history
and no configuration of the image; and the assertions ran. Needs a Docker daemon."""

from __future__ import annotations

import gzip
import io
import json
import os
import secrets
import shutil
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from deploy_kit.configs.catalog import Catalog
from deploy_kit.configs.schema import Stack
from deploy_kit.deploy.images import base_image, ensure_base, make_build_flags, read_inputs
from deploy_kit.stacks.verify import make_arguments

ROOT = Path(__file__).parents[3]


def no_docker() -> str | None:
    """Why no image can be built here, or None."""
    if shutil.which("docker") is None:
        return "docker is not installed"
    for question in (["docker", "version"], ["docker", "buildx", "version"]):
        if subprocess.run(question, capture_output=True, check=False).returncode != 0:
            return f"`{' '.join(question)}` fails: no daemon answers (deploy-kit up starts one)"
    return None


REASON = no_docker()
pytestmark = [
    pytest.mark.skipif(REASON is not None, reason=str(REASON)),
    pytest.mark.timeout(900),
]


def pieces(image: Path) -> Iterator[tuple[str, bytes]]:
    """Every file of a saved image: its configuration, its manifests, and each layer as one piece."""
    with tarfile.open(image) as archive:
        for member in archive:
            file = archive.extractfile(member) if member.isfile() else None
            if file is None:
                continue
            data = file.read()
            yield member.name, gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data


def places_of(marker: str, image: Path) -> list[str]:
    return [name for name, data in pieces(image) if marker.encode() in data]


def build(arguments: list[str]) -> str:
    done = subprocess.run(
        # KIT_BUILD_FLAGS: for a daemon without a bridge, --network=host.
        [
            "docker",
            "buildx",
            "build",
            "--progress",
            "plain",
            *os.environ.get("KIT_BUILD_FLAGS", "").split(),
            *arguments,
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stderr


def saved(folder: Path, arguments: list[str]) -> tuple[Path, str]:
    """Build, save the image to a file and remove it from the daemon; return the file and the build's log."""
    tag = f"deploy-kit/leaves-nothing:{secrets.token_hex(6)}"
    log = build(["--load", "--tag", tag, *arguments])
    try:
        subprocess.run(["docker", "save", "--output", str(folder / "image.tar"), tag], check=True)
    finally:
        subprocess.run(["docker", "rmi", "--force", tag], capture_output=True, check=False)
    return folder / "image.tar", log


def test_the_search_finds_what_a_layer_holds(tmp_path: Path) -> None:
    """Without this, a search that finds nothing would prove nothing."""
    marker = f"marker-{secrets.token_hex(16)}"
    (tmp_path / "Dockerfile").write_text("FROM scratch\nCOPY leaked /leaked\n")
    (tmp_path / "leaked").write_text(f"before {marker} after")
    image, _ = saved(tmp_path, [str(tmp_path)])
    assert places_of(marker, image)
    assert not places_of(f"marker-{secrets.token_hex(16)}", image)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path, str]:
    """The marker, the saved image and the build's log. The stage is built anew, so that pip really runs."""
    folder = tmp_path_factory.mktemp("slice")
    marker = f"marker-{secrets.token_hex(16)}"
    inputs = read_inputs()
    base = base_image((ROOT / "docker/Dockerfile").read_text())
    local = ensure_base(base)
    (folder / "pip.conf").write_text(f"# {marker}\n{inputs.pip_configuration}")
    (folder / "apt.conf").write_text(f"// {marker}\n{inputs.apt_configuration}")
    (folder / "wheels").mkdir()
    flags = [*make_build_flags(inputs, base=base, local_base=local, folder=folder)]
    bundle = inputs.ca_bundle or Path("/etc/ssl/certs/ca-certificates.crt")
    if bundle.is_file():
        (folder / "ca.crt").write_bytes(bundle.read_bytes() + f"\n# {marker}\n".encode())
        if inputs.ca_bundle is not None:
            at = flags.index(f"id=ca.crt,src={inputs.ca_bundle}")
            del flags[at - 1 : at + 1]
        flags += ["--secret", f"id=ca.crt,src={folder / 'ca.crt'}"]
    arguments = make_arguments(Catalog(ROOT / "configs").load(Stack, "current"))
    for name, value in arguments.items():
        flags += ["--build-arg", f"{name}={value}"]
    image, log = saved(
        folder,
        [
            "--file", str(ROOT / "docker/Dockerfile"), "--target", "slice", "--no-cache-filter", "slice",
            *flags, str(ROOT),
        ],
    )  # fmt: skip
    return marker, image, log


def test_secrets_leave_nothing(built: tuple[str, Path, str]) -> None:
    marker, image, _ = built
    assert image.stat().st_size > 100 << 20
    assert places_of(marker, image) == []


def test_the_image_names_no_secret_s_content(built: tuple[str, Path, str]) -> None:
    """History and configuration hold the secrets' ids, never their values or this machine's addresses."""
    _, image, _ = built
    with tarfile.open(image) as archive:
        manifest = json.load(io.BytesIO(archive.extractfile("manifest.json").read()))  # type: ignore[union-attr]
        config = archive.extractfile(manifest[0]["Config"]).read().decode()  # type: ignore[union-attr]
    assert json.loads(config)["config"]["User"] == "10001:10001"
    for line in read_inputs().pip_configuration.splitlines():
        key, _, value = line.partition(" = ")
        if key in ("index-url", "extra-index-url", "trusted-host", "proxy"):
            assert all(word not in config for word in value.split()), key


def test_patch_lock_and_assertions_ran(built: tuple[str, Path, str]) -> None:
    _, _, log = built
    for words in (
        "applied      docker/patches/current/0001-sm120-allreduce-fusion.patch",
        "versions: 2 packages are installed as pinned",
        "sglang: found 0.5.23, allowed 0.5.23",
        "effect of sm120-fusion: every added line is in the installed code, which compiles",
    ):
        assert words in log, words
    assert "FAILED" not in log
