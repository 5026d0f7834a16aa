"""The running compose project's monitoring: every expression is answered, and the numbers are the known ones.

Needs the project up (`make up`: kimi-eagle and prometheus). Addresses: DEPLOY_KIT_E2E_ENGINE and
DEPLOY_KIT_E2E_PROMETHEUS, by default the published loopback ports. Without the project the tests are skipped;
with DEPLOY_KIT_E2E=1 they fail instead.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from monitoring_expressions import ROOT, all_expressions

from deploy_kit.metrics.reading import Engine, Histogram, read
from deploy_kit.metrics.text import parse

ENGINE = os.environ.get("DEPLOY_KIT_E2E_ENGINE", "http://127.0.0.1:30000")
PROMETHEUS = os.environ.get("DEPLOY_KIT_E2E_PROMETHEUS", "http://127.0.0.1:9090")
KEY_FILE = Path(os.environ.get("DEPLOY_KIT_API_KEY_FILE", ROOT / "var/secrets/api_key"))
TOKENS = 400
SINGLE_SECONDS, BUSY_SECONDS = 45.0, 45.0
NO_BASELINE = ("speculation_speedup", "breakeven_accept_length")

pytestmark = [pytest.mark.docker, pytest.mark.slow, pytest.mark.timeout(600)]


@dataclass(frozen=True)
class Run:
    """What happened while the requests ran: the engine's readings around them, and the times."""

    before: Engine
    after: Engine
    began: float
    ended: float


def headers() -> dict[str, str]:
    return {"Authorization": f"Bearer {KEY_FILE.read_text().strip()}"} if KEY_FILE.exists() else {}


def scrape() -> Engine:
    (engine,) = read(parse(httpx.get(f"{ENGINE}/metrics", timeout=10).text)).engines
    return engine


def complete(model: str) -> None:
    answer = httpx.post(
        f"{ENGINE}/v1/completions",
        headers=headers(),
        json={"model": model, "prompt": "Ada builds", "max_tokens": TOKENS, "temperature": 0},
        timeout=120,
    )
    answer.raise_for_status()
    assert answer.json()["usage"]["completion_tokens"] == TOKENS


@pytest.fixture(scope="module")
def run() -> Iterator[Run]:
    for url in (f"{ENGINE}/health", f"{PROMETHEUS}/-/ready"):
        try:
            httpx.get(url, headers=headers(), timeout=30).raise_for_status()
        except httpx.HTTPError as error:
            if os.environ.get("DEPLOY_KIT_E2E") == "1":
                raise
            pytest.skip(f"the compose project is not up: {url}: {error}")
    before = scrape()
    assert before.model is not None
    began = time.time()
    while time.time() < began + SINGLE_SECONDS:
        complete(before.model)
    with ThreadPoolExecutor(3) as pool:
        while time.time() < began + SINGLE_SECONDS + BUSY_SECONDS:
            list(pool.map(complete, [before.model] * 3))
    after = scrape()
    time.sleep(6)  # one scrape and one evaluation more
    yield Run(before, after, began, time.time())


def ask(run: Run, expression: str) -> list[Any]:
    """Return the series that answered at any moment of the run."""
    answer = httpx.post(
        f"{PROMETHEUS}/api/v1/query_range",
        data={"query": expression, "start": run.began, "end": run.ended, "step": 5},
        timeout=30,
    )
    assert answer.status_code == httpx.codes.OK, f"{expression}: {answer.text}"
    series: list[Any] = answer.json()["data"]["result"]
    return [one for one in series if any(value != "NaN" for _at, value in one["values"])]


def test_every_expression_is_answered(run: Run) -> None:
    without_baseline = not ask(run, 'deploy_kit_baseline_step_seconds{source!="unknown"}')
    empty = []
    for asked in all_expressions():
        excepted = asked.exception or (
            "no baseline receipt for this host"
            if without_baseline and any(name in asked.expression for name in NO_BASELINE)
            else None
        )
        if not ask(run, asked.expression) and excepted is None:
            empty.append(f"{asked.where}: {asked.expression}")
    assert not empty, "\n".join(empty)


def test_accept_length_is_the_known_one(run: Run) -> None:
    from deploy_kit.configs.catalog import Catalog
    from deploy_kit.plan.resolve import resolve

    known = resolve(Catalog.find(None), "eagle3", host="rehearsal").known_accept_length
    assert known is not None
    found = run.after.own["accept_length"].since(run.before.own.get("accept_length") or Histogram(0.0, 0.0))
    assert found is not None
    assert found.count > 100
    assert found.mean == pytest.approx(known, rel=0.01)
    accepted = sum(run.after.positions.values()) - sum(run.before.positions.values())
    assert 1 + accepted / found.count == pytest.approx(found.mean, rel=1e-9)
    positions = [run.after.positions[number] for number in sorted(run.after.positions)]
    assert positions == sorted(positions, reverse=True)


def test_no_alert_but_those_a_rehearsal_earns(run: Run) -> None:
    """A tiny model on a CPU may well be slower with speculation; nothing else may fire."""
    firing = {one["metric"]["alertname"] for one in ask(run, 'ALERTS{alertstate="firing"}')}
    assert firing <= {"SpeculationNetNegative", "VerifyP95Regressed"}
