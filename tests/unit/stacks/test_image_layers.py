"""Sizes by layer: what Docker's history becomes, and what is said when there is no image."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from deploy_kit.cli.stack import app
from deploy_kit.errors import DeployKitError
from deploy_kit.stacks import layers
from deploy_kit.stacks.layers import OURS, SHOWN_CHARACTERS, Layer, describe, parse_history, read_layers

ROOT = Path(__file__).parents[3]


def history(*steps: tuple[str, int]) -> str:
    """As Docker prints it: the newest step first."""
    lines = [json.dumps({"CreatedBy": command, "Size": str(size)}) for command, size in steps]
    return "\n".join(reversed(lines)) + "\n"


def test_layers_are_listed_from_the_base_on_and_empty_ones_left_out() -> None:
    text = history(
        ("", 130),
        ("ENV PATH=/opt", 0),
        ('RUN |1 STACK=current /bin/bash -o pipefail -euxc sh /src/layer.sh "$STACK" cuda # buildkit', 4341),
        ("RUN /bin/sh -c apt-get   install -y nsight-systems-cli # buildkit", 7),
    )
    assert parse_history(text) == [
        Layer("base", 130),
        Layer("lock group cuda", 4341),
        Layer("apt-get install -y nsight-systems-cli", 7),
    ]


def test_a_long_command_is_cut() -> None:
    assert len(describe("RUN /bin/sh -c " + "x" * 500)) == SHOWN_CHARACTERS


def test_every_part_that_names_a_layer_of_ours_is_in_the_dockerfile() -> None:
    """As the history has them, where COPY --from's stage is left out."""
    text = (
        (ROOT / "docker/Dockerfile")
        .read_text()
        .replace("--from=gpu-kernels ", "")
        .replace("--from=gpu-kit ", "")
    )
    for part, _ in OURS:
        assert part in text, part


def test_two_images_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    found = {"ours:1": [Layer("a", 4_000_000)], "theirs:1": [Layer("b", 16_000_000)]}
    monkeypatch.setattr(layers, "read_layers", found.__getitem__)
    said = CliRunner().invoke(app, ["layers", "ours:1", "theirs:1"])
    assert said.exit_code == 0
    assert "ours:1 is 0.25 of theirs:1" in said.stdout
    asked = CliRunner().invoke(app, ["layers", "ours:1", "theirs:1", "--json"])
    assert json.loads(asked.stdout)["ratio"] == 0.25
    assert json.loads(CliRunner().invoke(app, ["layers", "ours:1", "--json"]).stdout)["ratio"] is None


def test_no_docker_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(DeployKitError, match="docker is not installed"):
        read_layers("deploy-kit/none:1")
