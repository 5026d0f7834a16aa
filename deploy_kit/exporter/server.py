"""Starting and stopping the exporter: one HTTP server and one scraping thread."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from deploy_kit.errors import DeployKitError
from deploy_kit.exit_codes import ExitCode
from deploy_kit.exporter.facts import PlanFacts
from deploy_kit.exporter.watch import EngineWatch
from deploy_kit.startup.status import StartupStatus

FETCH_TIMEOUT_SECONDS = 3.0


@dataclass
class Exporter:
    """A running exporter; `port` is the one really used (0 asks for any free one)."""

    port: int
    watch: EngineWatch
    _server: Any
    _thread: threading.Thread

    def stop(self) -> None:
        """Stop scraping and serving; returns when both threads have ended."""
        self.watch.stop()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(timeout=5.0)


def start_exporter(
    port: int,
    *,
    address: str,
    engine_url: str,
    plan: PlanFacts | Callable[[], PlanFacts],
    startup: Callable[[], StartupStatus] | None = None,
    api_key: str | None = None,
) -> Exporter:
    """Serve the exporter's /metrics on `address`:`port` in threads of this process, and return it.

    `engine_url` is the engine's base address (`/metrics` is added); `plan` is the plan's facts, or returns
    those of the moment; `startup` returns the newest start-up status. Raises `DeployKitError` when the port
    cannot be had.
    """
    from prometheus_client import CollectorRegistry, start_http_server

    from deploy_kit.exporter.collector import ExporterCollector

    watch = EngineWatch(make_fetch(f"{engine_url.rstrip('/')}/metrics", api_key=api_key))
    registry = CollectorRegistry(auto_describe=False)
    registry.register(ExporterCollector(plan, watch, startup))
    try:
        server, thread = start_http_server(port, addr=address, registry=registry)
    except OSError as error:
        raise DeployKitError(
            f"the exporter cannot listen on {address}:{port}: {error.strerror or error}",
            key="DEPLOY_KIT_EXPORTER_PORT",
            found=port,
            remedy="stop what listens there, or set another port",
            exit_code=ExitCode.PORT_TAKEN,
        ) from error
    watch.start()
    return Exporter(int(server.server_port), watch, server, thread)


def make_fetch(url: str, *, api_key: str | None) -> Callable[[], str]:
    """Return a function that gets the engine's metrics text, over one kept connection."""
    import httpx

    headers = {} if api_key is None else {"Authorization": f"Bearer {api_key}"}
    client = httpx.Client(headers=headers, timeout=FETCH_TIMEOUT_SECONDS, follow_redirects=True)

    def fetch() -> str:
        answer = client.get(url)
        answer.raise_for_status()
        return answer.text

    return fetch
