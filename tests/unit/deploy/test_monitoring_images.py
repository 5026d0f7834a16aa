"""Upstream images where a registry answers, Debian's packages where none does, and what is then left out."""

import json
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import pytest
import yaml

from deploy_kit.deploy.monitoring_images import (
    DEBIAN,
    Choice,
    build_debian,
    choose,
    main,
    upstream_images,
    wanted_services,
)
from deploy_kit.errors import DeployKitError

ROOT = Path(__file__).parents[3]
UPSTREAM = upstream_images((ROOT / "docker/compose.monitoring.yaml").read_text())
FULL = wanted_services("full", gpus=False)
GPU = wanted_services("full", gpus=True)


class _Loader(yaml.SafeLoader):
    """Compose's own tags (!reset, !override) are read as what they stand before."""


_Loader.add_multi_constructor("!", lambda loader, _suffix, node: loader.construct_yaml_seq(node))


def compose(name: str) -> Any:
    return yaml.load((ROOT / "docker" / name).read_text(), Loader=_Loader)


def decide(
    wanted: tuple[str, ...],
    *,
    there: Collection[str] = (),
    unreachable: Callable[[str], bool] = lambda _name: False,
    asked: str = "auto",
) -> tuple[Choice, list[str]]:
    pulled: list[str] = []

    def pull(name: str) -> str | None:
        pulled.append(name)
        return "no route" if unreachable(name) else None

    return choose(wanted, UPSTREAM, asked=asked, there=lambda name: name in there, pull=pull), pulled


def test_the_pins_are_read_from_the_compose_file() -> None:
    services = compose("compose.monitoring.yaml")["services"]
    assert set(UPSTREAM) == {"prometheus", *services}
    for name, service in services.items():
        assert UPSTREAM[name] == service["image"]


def test_the_debian_tags_are_those_of_the_compose_file() -> None:
    services = compose("compose.monitoring-debian.yaml")["services"]
    for name in ("alertmanager", "node-exporter"):
        assert services[name]["image"] == DEBIAN[name][1]
    dockerfile = (ROOT / "docker/Dockerfile").read_text()
    for target, _tag in DEBIAN.values():
        assert f" AS {target}\n" in dockerfile


def test_where_a_registry_answers_all_is_upstream() -> None:
    choice, pulled = decide(GPU)
    assert choice.source == "upstream"
    assert choice.images == {service: UPSTREAM[service] for service in GPU}
    assert choice.left_out == {}
    assert sorted(pulled) == sorted(UPSTREAM.values())


def test_where_none_answers_one_attempt_is_enough_and_what_is_left_out_is_said() -> None:
    choice, pulled = decide(GPU, unreachable=lambda _name: True)
    assert choice.source == "debian"
    assert set(choice.images) == {"prometheus", "alertmanager", "node-exporter"}
    assert set(choice.left_out) == {"grafana", "dcgm-exporter"}
    assert all("LEFT OUT" in sentence for sentence in choice.left_out.values())
    assert pulled == [UPSTREAM["node-exporter"]]


@pytest.mark.parametrize("there", [[tag for _target, tag in DEBIAN.values()], list(UPSTREAM.values())])
def test_a_second_run_fetches_nothing(there: list[str]) -> None:
    choice, pulled = decide(FULL, there=there, unreachable=lambda _name: True)
    assert pulled == []
    assert choice.source == ("debian" if DEBIAN["prometheus"][1] in there else "upstream")


def test_a_vendor_s_registry_that_is_closed_costs_only_its_own_image() -> None:
    choice, _pulled = decide(GPU, unreachable=lambda name: name.startswith("nvcr.io"))
    assert choice.source == "upstream"
    assert "grafana" in choice.images
    assert "dcgm-exporter" not in choice.images
    assert "LEFT OUT: no route" in choice.left_out["dcgm-exporter"]


def test_what_was_asked_for_is_not_replaced() -> None:
    assert decide(FULL, asked="debian")[0].source == "debian"
    with pytest.raises(DeployKitError, match="cannot be pulled"):
        decide(FULL, asked="upstream", unreachable=lambda _name: True)


def test_prometheus_alone_leaves_nothing_out() -> None:
    choice, _pulled = decide(wanted_services("prometheus", gpus=True), unreachable=lambda _name: True)
    assert set(choice.images) == {"prometheus"}
    assert choice.left_out == {}


def test_an_image_is_built_again_only_for_another_dockerfile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids: dict[str, str] = {}
    built: list[str] = []

    def stand_in_build(_root: Path, _target: str, tag: str) -> dict[str, object]:
        changed = tag not in ids
        ids.setdefault(tag, f"id of {tag}")
        built.append(tag)
        return {"id": ids[tag], "changed": changed}

    module = "deploy_kit.deploy.monitoring_images"
    monkeypatch.setattr(f"{module}.build", stand_in_build)
    monkeypatch.setattr(f"{module}.image_id", ids.get)
    (tmp_path / "docker").mkdir()
    dockerfile = tmp_path / "docker/Dockerfile"
    dockerfile.write_text("FROM a\n")
    services = ("prometheus", "alertmanager")
    assert build_debian(tmp_path, services) == {"built": list(services), "changed": True}
    assert build_debian(tmp_path, services) == {"built": [], "changed": False}
    del ids[DEBIAN["alertmanager"][1]]  # removed by hand
    assert build_debian(tmp_path, services) == {"built": ["alertmanager"], "changed": True}
    dockerfile.write_text("FROM b\n")  # another text that gives the same images
    assert build_debian(tmp_path, services) == {"built": list(services), "changed": False}
    (tmp_path / "var/monitoring-images.json").write_text("[")
    assert build_debian(tmp_path, services)["changed"] is False


def test_the_command_line_is_the_one_that_the_role_uses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = (ROOT / "ansible/roles/monitoring/tasks/configure.yml").read_text()
    (task,) = [one for one in yaml.safe_load(text) if one["name"].startswith("Build the monitoring")]
    argv = task["ansible.builtin.command"]["argv"]
    assert argv[1:3] == ["-m", "deploy_kit.deploy.monitoring_images"]
    words = [word.partition("=")[0] for word in argv[3:]]
    values = {"--root": f"={tmp_path}", "--services": "=prometheus,alertmanager"}
    asked: list[tuple[Path, tuple[str, ...]]] = []

    def stand_in_build(root: Path, services: tuple[str, ...]) -> dict[str, Any]:
        asked.append((root, services))
        return {"built": [], "changed": False}

    monkeypatch.setattr("deploy_kit.deploy.monitoring_images.build_debian", stand_in_build)
    monkeypatch.setattr("sys.argv", ["images", *(word + values.get(word, "") for word in words)])
    main()
    assert asked == [(tmp_path, ("prometheus", "alertmanager"))]
    assert json.loads(capsys.readouterr().out)["changed"] is False
