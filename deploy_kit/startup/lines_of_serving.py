"""Lines of a server that is up: readiness, requests, batches, its own health."""

from __future__ import annotations

import re

from deploy_kit.startup.journal import ORDER, Journal
from deploy_kit.startup.lines import Line

_BIND = re.compile(r"running on (?:https?://)?(\S+)")
_SHUTDOWN = ("Shutting down", "Waiting for application shutdown", "Finished server process")
_HTTP = re.compile(r'INFO:\s+\S+ - "(?P<method>\w+) (?P<path>\S+) HTTP/[\d.]+" (?P<status>\d{3})')
_ACCEPT = re.compile(r"accept len: ([\d.]+)")


def read_the(journal: Journal, line: Line) -> None:
    """The engine's own ready line."""
    if line.text.startswith("The server is fired up and ready to roll"):
        journal.run.stages[line.rank] = (journal.run.stage[0], ORDER["warming"])
        journal.run.ready = True
        journal.run.unhealthy = None
        journal.run.progress = None
        journal.run.compiling = False
        journal.alive(line, strong=True)
    elif line.text.startswith("The memory capacity is unbalanced"):
        journal.run.remarks["memory"] = line.text[:200]


def read_info(journal: Journal, line: Line) -> None:
    """Uvicorn's lines: requests, bound, shutting down."""
    text = line.text
    access = _HTTP.match(text)
    if access is not None:
        _http(journal, line, access)
        return
    rest = text[5:].strip()
    if rest.startswith(("Application startup complete", "Started server process", "Uvicorn running")):
        journal.reach("warming", line)
        match = _BIND.search(rest)
        if match is not None:
            journal.run.facts["bind"] = match.group(1)
    elif rest.startswith(_SHUTDOWN) and (journal.run.ready or journal.run.draining):
        # Uvicorn shuts down the same way after a failed bind: only a server that was up was asked to.
        journal.run.draining = True
        journal.run.finished = journal.run.finished or rest.startswith("Finished")


def _http(journal: Journal, line: Line, match: re.Match[str]) -> None:
    run = journal.run
    status = int(match["status"])
    health = match["path"].startswith(("/health", "/ready"))
    if status >= 500 and not health:
        run.http_errors += 1
    if not run.ready:
        return
    if status == 200:
        if health:
            run.unhealthy = None
        elif match["method"] == "POST":
            run.serving = True
            run.unhealthy = None
            journal.alive(line, strong=False)
    elif status == 503 and health:
        run.unhealthy = run.unhealthy or line.text[:300]


def read_decode(journal: Journal, line: Line) -> None:
    """A decode batch: the engine serves."""
    run = journal.run
    if not line.text.startswith("Decode batch"):
        return
    if not run.ready and not run.args and not run.init_begun and run.stage == (0, 0) and not run.deaths:
        # Nothing of a start came before: the tail of a log, or a rotated one, of an engine that serves.
        run.ready = True
        run.remarks["cut"] = "the log's beginning is missing; decode lines tell that the engine is ready"
    if not run.ready:
        return
    run.serving = True
    run.unhealthy = None
    run.soft_watchdog = None
    run.life_order = journal.order
    for failure in run.failures:
        if failure.fatal is None:
            failure.fatal = False
    match = _ACCEPT.search(line.text)
    if match is not None:
        length = float(match.group(1))
        run.facts["accept_len"] = length
        if length > 0:
            run.accept_lines += 1
            run.accept_useless += length <= 1.02
    if run.accept_lines and "cuda graph: False" in line.text:
        run.facts["cuda_graph"] = False


def read_prefill(journal: Journal, _line: Line) -> None:
    """A prefill batch: the engine serves."""
    if journal.run.ready:
        journal.run.serving = True
        journal.run.life_order = journal.order


def read_health(journal: Journal, line: Line) -> None:
    """The engine's own health check got no answer in time."""
    if line.text.startswith("Health check failed"):
        journal.run.unhealthy = line.text[:300]
