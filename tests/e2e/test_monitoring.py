"""The deployment's monitoring, live: every expression is answered, the numbers are the known ones, nothing of
a dead engine lingers, and an alert reaches Alertmanager.

The tests build on each other in the order written: the last one kills the engine. They need `make up` once.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from deploy_kit_rehearsal import expect
from monitoring_expressions import all_expressions, all_panels

from deploy_kit.metrics.reading import Engine, Histogram, read
from deploy_kit.metrics.text import parse
from deploy_kit.receipts import read_receipt
from deploy_kit.receipts.bench import parse_bench

from .conftest import Deployment, copy_out
from .conftest import run as run_command

TOKENS = 200
DRAFTER, DRAFTED = "drafters/accept-2.75", 3
# Requests at once → for how long (a few recorded values of each band; windows are up to a minute).
LOADS = {1: 40.0, 3: 40.0, 8: 40.0}
LOADED_SECONDS = round(sum(LOADS.values())) + 15
QUIET_SECONDS = 6.0  # one scrape and one evaluation more
GONE_SECONDS = 15.0
PICTURES = Path(__file__).parents[2] / "build/pictures"
SMALLEST_PICTURE_BYTES = 20_000
SPEED_UP = "deploy_kit_speculation_speedup_ratio"
# What is shown of an engine at this moment; "gone" means that not one of these answers.
MOMENTARY = (
    SPEED_UP, "deploy_kit_breakeven_accept_length", "deploy_kit_verify_batch_requests",
    "deploy_kit:accept_length:mean_1m", "deploy_kit:accept_length:mean_30m",
    "deploy_kit:cycle_seconds:mean_5m",
    "deploy_kit:verify_seconds:p95_1m", "deploy_kit:speculation_speedup:mean_5m",
    "deploy_kit:accept_length:by_band", "deploy_kit:tokens_per_second:sum",
)  # fmt: skip

pytestmark = [pytest.mark.docker, pytest.mark.engine, pytest.mark.slow, pytest.mark.timeout(1500)]


@dataclass(frozen=True)
class Run:
    """What happened while the requests ran: the engine's readings around them, and the times."""

    deployment: Deployment
    before: Engine
    after: Engine
    began: float
    ended: float

    @property
    def prometheus(self) -> str:
        return str(self.deployment.answer["report"]["prometheus"])


def scrape(deployment: Deployment) -> Engine:
    time.sleep(1)  # the plug-in writes its sums five times a second
    (engine,) = read(parse(httpx.get(f"{deployment.url}/metrics", timeout=30).text)).engines
    return engine


def complete(deployment: Deployment) -> None:
    answer = httpx.post(
        f"{deployment.url}/v1/completions",
        headers={"Authorization": f"Bearer {deployment.key}"},
        json={
            "model": deployment.answer["report"]["model"],
            "prompt": "Ada builds",
            "max_tokens": TOKENS,
            "temperature": 0,
        },
        timeout=300,
    )
    answer.raise_for_status()
    assert answer.json()["usage"]["completion_tokens"] == TOKENS


@pytest.fixture(scope="module")
def run(bring_up: Callable[[str], Deployment], bench: Callable[[str], Path]) -> Iterator[Run]:
    bench("baseline")
    deployment = bring_up("eagle3")
    bench("eagle3")
    before = scrape(deployment)
    began = time.time()
    for at_once, seconds in LOADS.items():
        until = time.time() + seconds
        with ThreadPoolExecutor(at_once) as pool:
            while time.time() < until:
                list(pool.map(complete, [deployment] * at_once))
    after = scrape(deployment)
    time.sleep(QUIET_SECONDS)
    yield Run(deployment, before, after, began, time.time())


def ask(run: Run, expression: str) -> list[Any]:
    """Return the series that answered at any moment of the run."""
    answer = httpx.post(
        f"{run.prometheus}/api/v1/query_range",
        data={"query": expression, "start": run.began, "end": run.ended, "step": 5},
        timeout=30,
    )
    assert answer.status_code == httpx.codes.OK, f"{expression}: {answer.text}"
    series: list[Any] = answer.json()["data"]["result"]
    return [one for one in series if any(value != "NaN" for _at, value in one["values"])]


def now(run: Run, expression: str) -> list[Any]:
    """Return the series that answer at this moment."""
    answer = httpx.get(f"{run.prometheus}/api/v1/query", params={"query": expression}, timeout=30)
    assert answer.status_code == httpx.codes.OK, f"{expression}: {answer.text}"
    result: list[Any] = answer.json()["data"]["result"]
    return result


def wait_for(what: Callable[[], Any], seconds: float, *, every: float = 0.5) -> Any:
    """Return `what`'s first answer that is true, or its last one."""
    deadline = time.monotonic() + seconds
    while not (answer := what()) and time.monotonic() < deadline:
        time.sleep(every)
    return answer


def test_the_whole_monitoring_is_up(run: Run) -> None:
    targets = httpx.get(f"{run.prometheus}/api/v1/targets", params={"state": "active"}, timeout=30).json()
    health = {one["labels"]["job"]: one["health"] for one in targets["data"]["activeTargets"]}
    assert {job: health.get(job) for job in ("engine", "exporter", "node", "prometheus")} == dict.fromkeys(
        ("engine", "exporter", "node", "prometheus"), "up"
    )
    managers = httpx.get(f"{run.prometheus}/api/v1/alertmanagers", timeout=30).json()["data"]
    assert len(managers["activeAlertmanagers"]) == 1
    report = run.deployment.answer["report"]
    left_out = " ".join(report["monitoring_left_out"])
    assert bool(report["grafana"]) != ("grafana is LEFT OUT" in left_out)


def test_every_expression_is_answered(run: Run) -> None:
    empty = [
        f"{asked.where}: {asked.expression}"
        for asked in all_expressions()
        if asked.exception is None and not ask(run, asked.expression)
    ]
    assert not empty, "\n".join(empty)


def test_no_panel_is_empty_but_those_that_say_they_need_gpus(run: Run) -> None:
    empty = [
        panel.where
        for panel in all_panels()
        if not panel.excused and not any(ask(run, expression) for expression in panel.expressions)
    ]
    assert not empty, empty


@pytest.fixture
def known_lengths(run: Run, speech_of: Callable[[Deployment], expect.Speech], tmp_path: Path) -> list[int]:
    """Accept length of each verify of one long answer, computed from the models' construction."""
    speech = speech_of(run.deployment)
    never = expect.load_never_drafted(copy_out(run.deployment, DRAFTER, tmp_path))
    return expect.expected_accept_lengths(speech, never, speech.circle[0], 20 * TOKENS, DRAFTED)


def test_accept_length_is_the_known_one(run: Run, known_lengths: list[int]) -> None:
    known = float(run.deployment.answer["report"]["known_accept_length"])
    found = run.after.own["accept_length"].since(run.before.own.get("accept_length") or Histogram(0.0, 0.0))
    assert found is not None
    assert found.count > 100
    assert found.mean == pytest.approx(known, rel=0.01)
    accepted = sum(run.after.positions.values()) - sum(run.before.positions.values())
    assert 1 + accepted / found.count == pytest.approx(found.mean, rel=1e-9)
    for position in range(1, DRAFTED + 1):
        rate = sum(length > position for length in known_lengths) / len(known_lengths)
        counted = run.after.positions.get(position, 0.0) - run.before.positions.get(position, 0.0)
        assert counted / found.count == pytest.approx(rate, rel=0.01, abs=0.005), position


def test_speed_up_and_break_even_come_from_the_baseline_s_receipt(
    run: Run, bench: Callable[[str], Path]
) -> None:
    _subject, summary = parse_bench(read_receipt(bench("baseline")))
    measured = {str(cell.concurrency): 1 / (cell.stream_tokens_per_second or 0) for cell in summary.cells}
    shown = {
        one["metric"]["batch"]: float(one["values"][-1][1])
        for one in ask(run, 'deploy_kit_baseline_step_seconds{service="kimi-eagle",source="receipt"}')
    }
    assert shown == pytest.approx(measured)
    (ratio,) = ask(run, f'{SPEED_UP}{{service="kimi-eagle"}}')
    (breakeven,) = ask(run, 'deploy_kit_breakeven_accept_length{service="kimi-eagle"}')
    # Speed-up x break-even is the accept length of that window: the drafter's, however fast the machine.
    by_time = dict(breakeven["values"])
    products = [float(value) * float(by_time[at]) for at, value in ratio["values"] if at in by_time]
    assert len(products) > 5
    known = float(run.deployment.answer["report"]["known_accept_length"])
    assert sum(products) / len(products) == pytest.approx(known, rel=0.1)


def test_the_plan_s_verify_p95_comes_from_its_own_receipt(run: Run, bench: Callable[[str], Path]) -> None:
    _subject, summary = parse_bench(read_receipt(bench("eagle3")))
    expected = max(cell.engine.verify_p95_seconds or 0 for cell in summary.cells)
    (shown,) = ask(run, 'deploy_kit_plan_verify_p95_seconds{service="kimi-eagle"}')
    assert float(shown["values"][-1][1]) == pytest.approx(expected)


def test_the_dashboards_are_drawn(run: Run) -> None:
    """The pictures of docs/images; what the expressions answered is drawn, panel by panel."""
    window = ("--range", f"{LOADED_SECONDS}s", "--end", str(run.ended - QUIET_SECONDS))
    done = run_command("scripts/pictures.sh", *window, timeout=1200)
    assert done.returncode == 0, done.stdout + done.stderr
    if "skipped:" in done.stdout:
        pytest.skip(done.stdout.strip().splitlines()[-1])
    drawn = {path.stem: json.loads(path.read_text()) for path in PICTURES.glob("*.json")}
    panels = {
        f"{name}: {panel['title']}": panel["series"]
        for name, report in drawn.items()
        for panel in report["panels"]
    }
    assert set(panels) == {panel.where for panel in all_panels()}
    excused = {panel.where for panel in all_panels() if panel.excused}
    assert {where for where, series in panels.items() if not series} <= excused
    for name in drawn:
        assert (PICTURES / f"{name}.png").stat().st_size > SMALLEST_PICTURE_BYTES


def test_no_alert_but_those_a_rehearsal_earns(run: Run) -> None:
    """A tiny model on a CPU may well be slower with speculation; nothing else may fire."""
    firing = {one["metric"]["alertname"] for one in now(run, 'ALERTS{alertstate="firing"}')}
    assert firing <= {"SpeculationNetNegative", "VerifyP95Regressed"}


def gone(run: Run) -> dict[str, list[Any]]:
    """Return what of a dead engine still answers after the time in which it must not."""

    def lingering() -> Mapping[str, list[Any]]:
        names = {name: now(run, f'{name}{{service="kimi-eagle"}}') for name in MOMENTARY}
        return {name: found for name, found in names.items() if found}

    deadline = time.monotonic() + GONE_SECONDS
    while (left := lingering()) and time.monotonic() < deadline:
        time.sleep(0.5)
    return dict(left)


SIGNAL_ENGINE = """
import os, pathlib, signal, sys
for entry in pathlib.Path("/proc").glob("[0-9]*"):
    if int(entry.name) in (1, os.getpid()):
        continue
    words = (entry / "cmdline").read_bytes()
    if words.startswith(b"sglang::") or b"launch_server" in words:
        os.kill(int(entry.name), getattr(signal, sys.argv[1]))
        print(entry.name, words[:60])
"""


def signal_engine(run: Run, name: str) -> str:
    done = run_command("docker", "exec", run.deployment.container, "python", "-c", SIGNAL_ENGINE, name)
    assert done.stdout, f"no process of the engine was found: {done.stderr}"
    return done.stdout


def busy(run: Run) -> None:
    """Serve until the momentary numbers are there."""
    with ThreadPoolExecutor(1) as pool:
        asked = [pool.submit(complete, run.deployment) for _ in range(3)]
        wait_for(lambda: now(run, SPEED_UP), 60)
        for one in asked:
            one.result()


def test_a_frozen_engine_s_numbers_are_gone_within_15_seconds(run: Run) -> None:
    busy(run)
    assert now(run, SPEED_UP)
    signal_engine(run, "SIGSTOP")
    try:
        left = gone(run)
        said = wait_for(lambda: now(run, 'deploy_kit_up{service="kimi-eagle"} == 0'), GONE_SECONDS)
    finally:
        signal_engine(run, "SIGCONT")
    assert left == {}
    assert said, "the exporter itself must go on and say so"
    busy(run)
    assert wait_for(lambda: now(run, SPEED_UP), 30), "the numbers come back with the engine"


def test_a_killed_engine_is_gone_within_15_seconds_and_alertmanager_learns_of_it(run: Run) -> None:
    busy(run)
    assert now(run, SPEED_UP)
    signal_engine(run, "SIGKILL")
    assert gone(run) == {}

    def heard() -> set[str]:
        manager = run.deployment.answer["report"]["alertmanager"]
        alerts = httpx.get(f"{manager}/api/v2/alerts", timeout=30).json()
        return {one["labels"]["alertname"] for one in alerts}

    # No engine is left: the alert waits for two minutes, Prometheus then tells Alertmanager at once.
    wait_for(lambda: "ScrapeDown" in heard(), 200, every=2.0)
    assert "ScrapeDown" in heard(), now(run, "ALERTS")
