"""One box of a fleet really runs SGLang (the rehearsal's image), the other two the stand-in.

Wants about 3 GB of memory, 4 GB of disk and the image that `make up` builds. The tests build on each other.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

import httpx
import pytest

from .hosts import BOXES, GATEWAY, Client, Fleet, ask, has_image

IMAGE = "deploy-kit/rehearsal:0.5.23-cpu"
REAL = "box-1"
pytestmark = [
    pytest.mark.docker,
    pytest.mark.slow,
    pytest.mark.timeout(2400),
    pytest.mark.skipif(
        "FLEET_REAL" not in os.environ, reason="takes a quarter of an hour: FLEET_REAL=1 runs it"
    ),
]


@pytest.fixture(scope="module")
def mixed(fleet: Fleet, one: str) -> Iterator[Fleet]:
    """The fleet, of which one box has the real image in its own variables."""
    if not has_image(IMAGE):
        pytest.skip(f"{IMAGE} is not here: `make up` builds it")
    fleet.own[REAL] = {"engine_image": fleet.publish(IMAGE), "roll_ready_seconds": 900}
    yield fleet


def test_a_box_with_the_real_engine_is_deployed_beside_the_others(mixed: Fleet, one: str) -> None:
    answer = mixed.deploy(one, engine_profile="eagle3")
    assert set(answer["reports"]) == set(BOXES)
    assert mixed.workers() == dict.fromkeys(BOXES, "ready")
    said = ask(f"http://{mixed.address[REAL]}:30000", tokens=8, timeout=120)
    assert said.tokens == 8
    assert "stand-in" not in said.content
    metrics = httpx.get(f"http://{mixed.address[REAL]}:30000/metrics", timeout=60, trust_env=False).text
    assert "sglang:spec_accept_length" in metrics or "deploy_kit_spec_accept_length" in metrics


def test_the_gateway_spreads_requests_over_both_kinds(mixed: Fleet) -> None:
    with Client(mixed.entrance, threads=2, tokens=8) as client:
        time.sleep(30)
    assert not client.failures, client.failures[:3]
    stand_ins = sum(count for text, count in client.answers.items() if "stand-in" in text)
    assert 0 < stand_ins < sum(client.answers.values()), client.answers


def test_it_is_changed_and_taken_back_under_load_like_the_others(mixed: Fleet, one: str) -> None:
    before = mixed.state(REAL)["current"]["plan_id"]
    with Client(mixed.entrance, threads=2, tokens=8) as client:
        mixed.deploy(one, "--limit", f"{GATEWAY},{REAL}", engine_profile="baseline")
        assert mixed.state(REAL)["current"]["profile"] == "baseline"
        mixed.deploy(one, "--limit", f"{GATEWAY},{REAL}", command="rollback")
    assert not client.failures, client.failures[:3]
    assert mixed.state(REAL)["current"]["plan_id"] == before
    print(f"\nreal engine changed and taken back: {client.summary()}")


def test_the_same_again_changes_nothing(mixed: Fleet, one: str) -> None:
    again = mixed.deploy(one, engine_profile="eagle3")
    assert again["changed"] == 0, again["changed_steps"]
