"""The exporter's real server against a real HTTP engine stand-in that plays recorded scrapes."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from pathlib import Path

import httpx
import pytest

from deploy_kit.errors import DeployKitError
from deploy_kit.exporter.facts import PlanFacts
from deploy_kit.exporter.receipts import PlanFromReceipts
from deploy_kit.exporter.server import start_exporter
from deploy_kit.receipts import Host, Receipt, new_receipt, write_receipt

SCRAPE = (Path(__file__).parents[2] / "unit/metrics/scrapes/eagle3-2.75.prom").read_text()
PLAN = PlanFacts("abc", "eagle3", "rehearsal", "rehearsal-tiny", "rehearsal", True, True)


def played(times: int) -> str:
    """Return the recorded scrape with our counters grown: as if all of it had happened `times` times."""

    def grown(line: str) -> str:
        name, _, value = line.rpartition(" ")
        return (
            f"{name} {float(value) * times}"
            if line.startswith("deploy_kit_") and "_info" not in name
            else line
        )

    return "\n".join(grown(line) for line in SCRAPE.splitlines()) + "\n"


@pytest.fixture
def engine() -> Iterator[str]:
    asked = count(1)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(played(next(asked)).encode())

        def log_message(self, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def test_scrapes_serves_and_stops(engine: str) -> None:
    exporter = start_exporter(0, address="127.0.0.1", engine_url=engine, plan=PLAN)
    url = f"http://127.0.0.1:{exporter.port}/metrics"
    try:
        for _ in range(50):
            text = httpx.get(url).text
            if "deploy_kit_up 1.0" in text:
                break
            time.sleep(0.1)
        assert "deploy_kit_up 1.0" in text
        assert 'profile="eagle3"' in text
        with pytest.raises(DeployKitError, match="cannot listen"):
            start_exporter(exporter.port, address="127.0.0.1", engine_url=engine, plan=PLAN)
    finally:
        exporter.stop()
    with pytest.raises(httpx.ConnectError):
        httpx.get(url)


def baseline(host: str) -> Receipt:
    """A bench receipt of the baseline: 5 ms a step for one stream, 9 ms for each of four."""
    cells = [
        {
            "load": "closed", "concurrency": streams, "context_band": "0-2k", "round": 0, "requests": 4,
            "errors": 0, "retries": 0, "interval_seconds": 10.0, "output_tokens": 1000,
            "tokens_per_second": streams / step, "stream_tokens_per_second": 1 / step,
        }
        for streams, step in ((1, 0.005), (4, 0.009))
    ]  # fmt: skip
    return new_receipt(
        kind="bench",
        host=Host(name=host),
        rehearsal=True,
        plan_id="plan-b",
        subject={
            "profile": "baseline", "model": "rehearsal-tiny", "interface": "openai",
            "workload": {"name": "w", "sha256": "0" * 64, "output_tokens": 256, "temperature": 0.0,
                         "ignore_eos": True, "seed": 1},
        },
        samples=[],
        summary={"cells": cells},
    )  # fmt: skip


def test_speed_up_appears_with_the_baseline_s_receipt_and_not_before(engine: str, tmp_path: Path) -> None:
    plan = PlanFromReceipts(PLAN, tmp_path, served_model_name="rehearsal-tiny")
    exporter = start_exporter(0, address="127.0.0.1", engine_url=engine, plan=plan)

    def shown(seconds: float) -> dict[str, float]:
        deadline = time.monotonic() + seconds
        while True:
            text = httpx.get(f"http://127.0.0.1:{exporter.port}/metrics").text
            lines = (line.rpartition(" ") for line in text.splitlines() if line.startswith("deploy_kit_"))
            values = {name: float(value) for name, _, value in lines}
            if "deploy_kit_speculation_speedup_ratio" in values or time.monotonic() > deadline:
                return values
            time.sleep(0.2)

    try:
        write_receipt(tmp_path, baseline("another-host"))
        before = shown(6.0)
        assert before["deploy_kit_verify_batch_requests"] == pytest.approx(879 / 441)
        assert "deploy_kit_speculation_speedup_ratio" not in before
        assert "deploy_kit_breakeven_accept_length" not in before
        write_receipt(tmp_path, baseline("rehearsal"))
        after = shown(30.0)
    finally:
        exporter.stop()
    cycle = (
        re.search(r"spec_cycle_seconds_sum{[^}]*} (\S+)", SCRAPE),
        re.search(r"spec_cycle_seconds_count{[^}]*} (\S+)", SCRAPE),
    )
    assert cycle[0]
    assert cycle[1]
    step = 0.005 + (0.009 - 0.005) * (879 / 441 - 1) / 3  # between one stream and four
    breakeven = float(cycle[0][1]) / float(cycle[1][1]) / step
    assert after["deploy_kit_breakeven_accept_length"] == pytest.approx(breakeven)
    assert after["deploy_kit_speculation_speedup_ratio"] == pytest.approx(2407 / 879 / breakeven)
    assert after['deploy_kit_baseline_step_seconds{batch="4",source="receipt"}'] == pytest.approx(0.009)
