"""The telemetry plug-in in the real engine: every number equals what was computed beforehand."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from deploy_kit_rehearsal import expect
from engine_server import Server, serving
from transformers import AutoTokenizer

from deploy_kit.metrics.reading import Engine, Histogram, read
from deploy_kit.metrics.text import parse
from deploy_kit.telemetry.instruments import FLUSH_SECONDS
from deploy_kit.telemetry.plugin import TARGETS
from deploy_kit.telemetry.status import explain_missing, read_status

PROMPT = "Ada builds"
COUNT = 400
STEPS = 3
DRAFTER = "accept-2.75"


@pytest.fixture(scope="module")
def state(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("state")


@pytest.fixture(scope="module")
def server(models: Path, state: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(
        models / "target",
        tmp_path_factory.mktemp("server"),
        "--served-model-name", "rehearsal-tiny",
        "--speculative-algorithm", "EAGLE3",
        "--speculative-draft-model-path", str(models / "drafters" / DRAFTER),
        "--speculative-num-steps", str(STEPS),
        "--speculative-eagle-topk", "1",
        "--speculative-num-draft-tokens", str(STEPS + 1),
        SGLANG_PLUGINS="deploy_kit_rehearsal,deploy_kit_telemetry",
        DEPLOY_KIT_STATE_DIR=str(state),
    ) as running:  # fmt: skip
        yield running


def scrape(server: Server) -> Engine:
    (engine,) = read(parse(server.get("/metrics"))).engines
    return engine


def settled(server: Server, accepted: float = 0.0) -> Engine:
    """Scrape until so many accept lengths stand there and nothing comes after them: the plug-in writes what
    it summed a few times a second, and a busy machine's thread may be late."""
    deadline = time.monotonic() + 20
    before, after = scrape(server), scrape(server)
    while time.monotonic() < deadline:
        time.sleep(2 * FLUSH_SECONDS)
        before, after = after, scrape(server)
        if count(after, "accept_length") >= accepted and counts(before) == counts(after):
            break
    return after


def counts(engine: Engine) -> dict[str, float]:
    return {name: histogram.count for name, histogram in engine.own.items()}


def count(engine: Engine, name: str) -> float:
    histogram = engine.own.get(name)
    return histogram.count if histogram else 0.0


def added(after: Engine, before: Engine, name: str) -> Histogram:
    since = after.own[name].since(before.own.get(name) or Histogram(0.0, 0.0))
    assert since is not None
    return since


@pytest.fixture(scope="module")
def lengths(models: Path) -> list[int]:
    """Accept length of each verify of one answer, computed from the models' construction."""
    last = AutoTokenizer.from_pretrained(models / "target").encode(PROMPT)[-1]
    never = expect.load_never_drafted(models / "drafters" / DRAFTER)
    speech = expect.load_speech(models / "target")
    return expect.expected_accept_lengths(speech, never, last, COUNT, STEPS)


def test_every_hook_applied(server: Server, state: Path) -> None:
    status = read_status(state)
    assert status is not None
    assert status.applied == TARGETS
    assert status.timer == "wall"
    assert explain_missing(status) is None
    text = server.get("/metrics")
    assert f'hooks="{len(TARGETS)}"' in text
    assert text.count("deploy_kit_plugin_info{") == 1


def test_each_verify_is_counted_as_it_happens(server: Server, lengths: list[int]) -> None:
    before = settled(server)
    answer = server.generate(PROMPT, COUNT)
    # Nothing waits for the end of a log interval.
    after = settled(server, count(before, "accept_length") + len(lengths))
    assert answer["meta_info"]["spec_verify_ct"] == len(lengths)
    accept = added(after, before, "accept_length")
    assert accept.count == len(lengths)
    assert accept.mean == pytest.approx(sum(lengths) / len(lengths), rel=1e-9)
    assert accept.mean == pytest.approx(2.75, rel=0.01)
    for position in range(1, STEPS + 1):
        found = after.positions.get(position, 0.0) - before.positions.get(position, 0.0)
        assert found == sum(length > position for length in lengths), position
    cumulative = dict(accept.buckets)
    for bound in range(1, STEPS + 2):
        assert cumulative[float(bound)] == sum(length <= bound for length in lengths)


def test_forwards_and_cycles_fit_the_clock(server: Server, lengths: list[int]) -> None:
    before = settled(server)
    started = time.perf_counter()
    server.generate(PROMPT, COUNT)
    seconds = time.perf_counter() - started
    after = settled(server, count(before, "accept_length") + len(lengths))
    verifies = added(after, before, "verify")
    cycles = added(after, before, "cycle_seconds")
    assert verifies.count == len(lengths)
    assert cycles.count == len(lengths) - 1
    phases = [added(after, before, name).total or 0.0 for name in ("verify", "draft", "draft_extend")]
    assert all(phases)
    assert sum(phases) < (cycles.total or 0.0) + (verifies.mean or 0.0) * 3
    assert (cycles.total or 0.0) < seconds
    assert count(after, "decode") == 0


def test_a_busy_batch_is_counted_by_request(server: Server, lengths: list[int]) -> None:
    from concurrent.futures import ThreadPoolExecutor

    before = settled(server)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: server.generate(PROMPT, COUNT), range(4)))
    after = settled(server, count(before, "accept_length") + 4 * len(lengths))
    accept = added(after, before, "accept_length")
    assert accept.count == 4 * len(lengths)
    assert accept.mean == pytest.approx(sum(lengths) / len(lengths), rel=1e-9)
    assert added(after, before, "verify").count < accept.count


def test_no_exception_was_swallowed(server: Server) -> None:
    lines = [line for line in server.get("/metrics").splitlines() if line.startswith("deploy_kit_plugin_exc")]
    assert [float(line.rsplit(" ", 1)[1]) for line in lines] == [0.0]
