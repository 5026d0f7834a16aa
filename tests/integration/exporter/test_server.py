"""The exporter's real server against a real HTTP engine stand-in that plays recorded scrapes."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx
import pytest

from deploy_kit.errors import DeployKitError
from deploy_kit.exporter.facts import PlanFacts
from deploy_kit.exporter.server import start_exporter

SCRAPE = (Path(__file__).parents[2] / "unit/metrics/scrapes/eagle3-2.75.prom").read_text()
PLAN = PlanFacts("abc", "eagle3", "rehearsal", "rehearsal-tiny", "rehearsal", True, True)


@pytest.fixture
def engine() -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(SCRAPE.encode())

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
