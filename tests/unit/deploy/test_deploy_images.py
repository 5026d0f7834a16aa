"""What a machine contributes to a build, and that nothing of it is written down."""

import tomllib
from pathlib import Path

import pytest

from deploy_kit.deploy.images import (
    BuildInputs,
    apt_configuration,
    base_image,
    locked_names,
    make_build_flags,
    parse_pip_settings,
    pip_configuration,
    sources_from_targets,
    stage_wheels,
    wheel_folders,
)
from deploy_kit.errors import DeployKitError

ROOT = Path(__file__).parents[3]


def test_the_dockerfile_and_every_stack_name_the_same_base() -> None:
    base = base_image((ROOT / "docker/Dockerfile").read_text())
    for path in (ROOT / "configs/stacks").glob("*.toml"):
        stack = tomllib.loads(path.read_text())
        assert f"{stack['base']['image']}@{stack['base']['digest']}" == base, path


@pytest.mark.parametrize("text", ["", "FROM debian:bookworm\n", "FROM a@sha256:12\n"])
def test_a_base_without_a_digest_is_refused(text: str) -> None:
    with pytest.raises(DeployKitError):
        base_image(text)


def test_pip_s_settings_lose_what_a_build_cannot_see() -> None:
    settings = parse_pip_settings(
        "global.index-url='https://index.example/simple'\n"
        "global.extra-index-url='file:///somewhere/simple https://other.example/simple'\n"
        "global.cert='/some/bundle.crt'\n:env:.find-links='/some/wheels'\n:env:.timeout='60'\nnonsense\n"
    )
    text = pip_configuration(settings)
    assert "index-url = https://index.example/simple" in text
    assert "extra-index-url = https://other.example/simple" in text
    assert "file:" not in text
    assert "/some" not in text


def test_local_wheel_folders(tmp_path: Path) -> None:
    settings = {
        "global.find-links": f"{tmp_path} https://x.example /nowhere",
        ":env:.find-links": f"file://{tmp_path}",
    }
    assert wheel_folders(settings) == (tmp_path,)
    assert wheel_folders({}) == ()


def test_only_locked_wheels_are_sent(tmp_path: Path) -> None:
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    for name in ("torch-2.13.0+cpu-cp311-cp311-linux.whl", "huge-1-py3-none-any.whl", "notes.txt"):
        (wheels / name).write_text("x")
    names = locked_names([(ROOT / "docker/requirements/rehearsal.txt").read_text()])
    assert stage_wheels((wheels,), names, tmp_path / "staged") == 1
    assert [p.name for p in (tmp_path / "staged").iterdir()] == ["torch-2.13.0+cpu-cp311-cp311-linux.whl"]


def test_apt_settings_about_fetching_only() -> None:
    dump = (
        'Dir "/";\nAcquire::http::Proxy "http://p:1";\nAcquire::Check-Valid-Until "false";\nAPT::Update "";\n'
    )
    assert (
        apt_configuration(dump) == 'Acquire::http::Proxy "http://p:1";\nAcquire::Check-Valid-Until "false";\n'
    )


def test_debian_s_archives_of_this_machine() -> None:
    targets = (
        "http://a/debian/ bookworm main Debian\nhttp://a/debian/ bookworm-updates main Debian\n"
        "http://a/security/ bookworm-security main Debian\nhttp://a/debian/ bookworm contrib Debian\n"
        "http://a/debian/ trixie main Debian\nhttp://c/x/ bookworm main Other\n"
    )
    assert sources_from_targets(targets, "bookworm").splitlines() == [
        "deb http://a/debian bookworm main",
        "deb http://a/debian bookworm-updates main",
        "deb http://a/security bookworm-security main",
    ]
    assert sources_from_targets("http://b/ noble main Ubuntu\n", "bookworm") == ""


def test_flags_carry_no_value_of_a_secret(tmp_path: Path) -> None:
    inputs = BuildInputs(
        "[global]\nindex-url = https://user:word@x\n", "", tmp_path / "ca", (tmp_path,), ("HTTP_PROXY",)
    )
    flags = make_build_flags(
        inputs, base="debian:x@sha256:1", local_base="deploy-kit/base:bookworm", folder=tmp_path
    )
    assert "user:word" not in " ".join(flags)
    assert "debian:x@sha256:1=docker-image://deploy-kit/base:bookworm" in flags
    assert flags[-2:] == ("--build-arg", "HTTP_PROXY")
