"""The edges of serve: settings, key, preflight, state, redaction."""

from __future__ import annotations

import itertools
import os
import socket
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deploy_kit.configs.catalog import Catalog
from deploy_kit.errors import DeployKitError
from deploy_kit.exit_codes import ExitCode
from deploy_kit.plan.model import Plan
from deploy_kit.plan.resolve import resolve
from deploy_kit.runtime.child import HIDDEN, redact
from deploy_kit.runtime.preflight import (
    count_gpus,
    refuse_missing_gpus,
    refuse_missing_paths,
    refuse_taken_port,
)
from deploy_kit.runtime.relay import telling
from deploy_kit.runtime.secret import read_api_key, write_engine_config
from deploy_kit.runtime.serve import make_child_environment
from deploy_kit.runtime.settings import read_settings
from deploy_kit.runtime.state import EngineState, process_alive, read_state, write_state

KEY = "k-0123456789abcdef"


@pytest.fixture
def plan() -> Plan:
    return resolve(Catalog(Path(__file__).parents[3] / "configs"), "eagle3")


def test_settings_come_from_the_environment() -> None:
    settings = read_settings(
        {"DEPLOY_KIT_LEVERS": "a, b,", "DEPLOY_KIT_PORT": "31000", "DEPLOY_KIT_HOST": ""}
    )
    assert (settings.levers, settings.port, settings.model) == (("a", "b"), 31000, None)


@pytest.mark.parametrize("value", ["0", "65536", "http", "-1"])
def test_a_port_that_is_none(value: str) -> None:
    with pytest.raises(DeployKitError) as caught:
        read_settings({"DEPLOY_KIT_PORT": value})
    assert (caught.value.key, caught.value.found) == ("DEPLOY_KIT_PORT", value)


def test_a_key_is_required_off_loopback(tmp_path: Path) -> None:
    assert read_api_key(None, address="127.0.0.1") is None
    with pytest.raises(DeployKitError, match="required"):
        read_api_key(None, address="0.0.0.0")
    file = tmp_path / "key"
    file.write_text(KEY + "\n")
    assert read_api_key(file, address="0.0.0.0") == KEY


@pytest.mark.parametrize(
    "text", ["", "short", "two words of a key 123", "tab\tinside-0123456789", "ключ-0123456789-абв"]
)
def test_what_is_no_key(tmp_path: Path, text: str) -> None:
    file = tmp_path / "key"
    file.write_text(text)
    with pytest.raises(DeployKitError) as caught:
        read_api_key(file, address="127.0.0.1")
    assert not text or text not in (caught.value.found or "")


def test_the_engine_gets_the_key_in_a_private_file(tmp_path: Path) -> None:
    path = write_engine_config(tmp_path, KEY)
    assert path.stat().st_mode & 0o777 == 0o600
    assert KEY in path.read_text()


def test_gpus_are_counted_by_their_devices(tmp_path: Path, plan: Plan) -> None:
    for name in ("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm"):
        (tmp_path / name).touch()
    assert count_gpus(tmp_path) == 2
    with pytest.raises(DeployKitError) as caught:
        refuse_missing_gpus(plan, 2)
    assert caught.value.exit_code is ExitCode.NO_GPU


def test_a_missing_drafter_is_refused_before_the_load(tmp_path: Path, plan: Plan) -> None:
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").touch()
    (model / "a.safetensors").touch()
    here = replace(plan, required_paths=(("model", str(model)), ("drafter", str(tmp_path / "drafter"))))
    with pytest.raises(DeployKitError) as caught:
        refuse_missing_paths(here)
    assert caught.value.exit_code is ExitCode.ENGINE_DRAFTER
    assert "own draft" in (caught.value.remedy or "")
    (model / "a.safetensors").unlink()
    with pytest.raises(DeployKitError) as caught:
        refuse_missing_paths(here)
    assert caught.value.exit_code is ExitCode.ENGINE_WEIGHTS
    assert "no weights" in (caught.value.found or "")


def test_a_taken_port_is_refused() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(DeployKitError) as caught:
            refuse_taken_port("127.0.0.1", port)
    assert caught.value.exit_code is ExitCode.PORT_TAKEN
    refuse_taken_port("127.0.0.1", port)


def test_the_plan_wins_over_our_own_environment(plan: Plan, tmp_path: Path) -> None:
    child = make_child_environment(plan, {"NCCL_P2P_LEVEL": "LOC", "HOME": "/h"}, state_directory=tmp_path)
    assert (child["NCCL_P2P_LEVEL"], child["HOME"], child["DEPLOY_KIT_PLAN_ID"]) == (
        "SYS",
        "/h",
        plan.plan_id,
    )


def test_state_is_read_back_and_garbage_is_none(tmp_path: Path) -> None:
    state = EngineState("starting", "id", "eagle3", "m", "s", True, os.getpid(), None, 1.0)
    assert read_state(tmp_path) is None
    write_state(tmp_path, state)
    assert read_state(tmp_path) == state
    assert not state.ready
    assert replace(state, phase="serving", ready_at_seconds=2.0).ready
    assert not replace(state, phase="draining", ready_at_seconds=2.0).ready
    (tmp_path / "state.json").write_text("{")
    assert read_state(tmp_path) is None
    (tmp_path / "state.json").write_text('{"phase": 1}')
    assert read_state(tmp_path) is None


def test_alive() -> None:
    assert process_alive(os.getpid())
    assert not process_alive(2**22 + 1)


@given(st.binary(max_size=200), st.lists(st.integers(0, 240), max_size=6), st.booleans())
def test_the_secret_never_passes_however_the_stream_is_cut(text: bytes, cuts: list[int], twice: bool) -> None:
    secret = b"s3cr3t-k3y"
    stream = text[:50] + secret + text[50:] + (secret if twice else b"")
    edges = sorted({0, len(stream), *(cut for cut in cuts if cut < len(stream))})
    held, shown = b"", b""
    for start, end in itertools.pairwise(edges):
        out, held = redact(held + stream[start:end], secret)
        shown += out
    shown += held
    assert secret not in shown
    assert shown == stream.replace(secret, HIDDEN)


LOOK = b'[2026-11-30 15:14:08] INFO:     127.0.0.1:40210 - "GET /metrics HTTP/1.1" 200 OK\n'


@pytest.mark.parametrize(
    ("chunk", "told"),
    [
        (LOOK, 0),
        (LOOK.replace(b"/metrics", b"/health") + LOOK.replace(b"/metrics", b"/ready"), 0),
        (LOOK.replace(b"/metrics", b"/v1/models"), 0),
        (LOOK + b"Decode batch, #running-req: 1\n" + LOOK, 30),
        (b"Decode batch", 12),
        (LOOK.replace(b"GET /metrics", b"POST /generate"), len(LOOK) + 2),
        (b'"GET /metricsx HTTP/1.1" 404\n', 29),
        (b"", 0),
    ],
)
def test_looks_at_the_engine_are_no_sign_that_it_advances(chunk: bytes, told: int) -> None:
    assert telling(chunk) == told
