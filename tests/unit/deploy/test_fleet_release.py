"""A release: by digest, whole, and without a secret."""

import json
from pathlib import Path

import pytest

from deploy_kit.deploy.host_agent import check_release
from deploy_kit.deploy.release import ReleaseWish, read_release
from deploy_kit.errors import DeployKitError

ROOT = Path(__file__).parents[3]
IMAGE = "registry.example.org/engine@sha256:" + "a" * 64


def wish(**changes: object) -> ReleaseWish:
    return ReleaseWish.parse(
        json.dumps({"image": IMAGE, "profile": "baseline", "host": "rehearsal", **changes})
    )


def test_a_release_passes_the_hosts_own_check() -> None:
    release = read_release(wish(), ROOT)
    check_release(release)
    assert release["release"].startswith(release["plan_id"])
    assert release["service"] == "kimi-baseline"
    assert release["compose_files"] == ["compose.yaml", "compose.rehearsal.yaml", "compose.fleet.yaml"]


@pytest.mark.parametrize(
    "changes", [{"image": IMAGE.replace("a", "b", 1)}, {"profile": "eagle3"}, {"publish": "192.0.2.1"}]
)
def test_what_differs_makes_another_release(changes: dict[str, object]) -> None:
    assert read_release(wish(**changes), ROOT)["release"] != read_release(wish(), ROOT)["release"]


@pytest.mark.parametrize("image", ["", "engine:latest", "engine@sha256:12", IMAGE + " x"])
def test_an_image_without_a_digest_is_refused(image: str) -> None:
    with pytest.raises(DeployKitError, match="by digest"):
        read_release(wish(image=image), ROOT)


@pytest.mark.parametrize("text", ["", "[]", "1", '{"image": 1, "nonsense": 2}', '{"levers": 3}'])
def test_a_wish_that_is_not_one_is_refused(text: str) -> None:
    with pytest.raises(DeployKitError):
        ReleaseWish.parse(text)


def test_the_key_is_named_by_its_file_only() -> None:
    release = read_release(wish(), ROOT)
    assert "DEPLOY_KIT_API_KEY_FILE=/var/lib/deploy-kit/secrets/api_key" in release["files"]["settings.env"]
    assert "API_KEY=" not in json.dumps(release).replace("API_KEY_FILE=", "")


def test_a_boxs_own_host_file_decides_its_plan() -> None:
    text = (ROOT / "configs/hosts/rehearsal.toml").read_text()
    release = read_release(wish(host="", host_file=text), ROOT)
    assert release["rehearsal"] is True
    assert "DEPLOY_KIT_HOST=\n" in release["files"]["settings.env"]
