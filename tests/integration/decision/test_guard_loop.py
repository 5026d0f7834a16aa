"""The guard's loop over real HTTP, against stand-in metrics pages (no engine is involved)."""

from __future__ import annotations

import http.server
import json
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from deploy_kit.cli.guard import app
from deploy_kit.errors import DeployKitError
from deploy_kit.exit_codes import ExitCode
from deploy_kit.receipts import read_receipts

INFO = 'deploy_kit_plan_info{plan_id="abc",profile="eagle3",host="rehearsal",rehearsal="true"} 1\n'


@contextmanager
def pages(ratio: float, running: float) -> Iterator[tuple[str, str]]:
    class StandInPages(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            text = (
                f"{INFO}deploy_kit_speculation_speedup_ratio {ratio}\n"
                if self.path == "/exporter"
                else f'sglang:num_running_reqs{{tp_rank="0",model_name="m"}} {running}\n'
                f'sglang:generation_tokens_total{{tp_rank="0",model_name="m"}} 5\n'
            )
            self.send_response(200)
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *_: Any) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), StandInPages)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    base = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield f"{base}/exporter", f"{base}/engine"
    finally:
        server.shutdown()
        server.server_close()


# A window holds thirty looks: a busy machine, which takes only some of them, still judges.
FAST = ["--every", "0.1", "--window", "3", "--min-samples", "3", "--quiet", "0.3", "--for", "15"]


def test_losing_is_recorded_and_acted_on_once(tmp_path: Path) -> None:
    done = tmp_path / "redeployed"
    act = [sys.executable, "-c", f"open({str(done)!r}, 'a').write('x')"]
    with pages(0.7, 0) as (exporter, engine):
        options = [*FAST, "--receipts", str(tmp_path / "r"), "--json", "--allow-redeploy"]
        result = CliRunner().invoke(app, [exporter, engine, *options, "--", *act])
    assert result.exit_code == 0, result.output
    assert [json.loads(line)["action"] for line in result.output.splitlines()] == ["alert", "redeploy"]
    assert done.read_text() == "x"
    receipts = list(read_receipts(tmp_path / "r", kind="guard"))
    assert len(receipts) == 2
    assert all(receipt.rehearsal and receipt.plan_id == "abc" for receipt in receipts)


def test_busy_engines_are_left_alone(tmp_path: Path) -> None:
    with pages(0.7, 3) as (exporter, engine):
        options = [*FAST, "--receipts", str(tmp_path / "r"), "--allow-redeploy"]
        result = CliRunner().invoke(app, [exporter, engine, *options, "--", "false"])
    assert result.exit_code == int(ExitCode.VERDICT_WARN)
    assert "speculation is losing" in result.output


@pytest.mark.parametrize("words", [["--allow-redeploy"], ["--", "true"]])
def test_acting_needs_leave_and_a_command(words: list[str], tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["http://127.0.0.1:1/a", "http://127.0.0.1:1/b", *words])
    assert isinstance(result.exception, DeployKitError)
    assert result.exception.exit_code == ExitCode.USAGE


def test_a_failing_redeploy_is_told(tmp_path: Path) -> None:
    with pages(0.7, 0) as (exporter, engine):
        options = [*FAST, "--receipts", str(tmp_path / "r"), "--allow-redeploy"]
        result = CliRunner().invoke(app, [exporter, engine, *options, "--", "false"])
    assert isinstance(result.exception, DeployKitError)
    assert result.exception.exit_code == ExitCode.DEPLOY_FAILED


def test_nothing_there_is_no_verdict(tmp_path: Path) -> None:
    options = [*FAST, "--for", "1", "--receipts", str(tmp_path / "r")]
    result = CliRunner().invoke(app, ["http://127.0.0.1:1/a", "http://127.0.0.1:1/b", *options])
    assert result.exit_code == 0
    assert "not read: the speed-up ratio (EXPORTER), the running requests (ENGINE)" in result.stderr
    assert not (tmp_path / "r").exists()


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["x", "http://127.0.0.1:1/b"], "x"),
        (["http://127.0.0.1:1/a", "http://127.0.0.1:1/b", "--windw"], "--windw"),
    ],
)
def test_what_is_no_address_or_no_option_is_refused(words: list[str], found: str) -> None:
    error = CliRunner().invoke(app, words).exception
    assert isinstance(error, DeployKitError)
    assert (error.exit_code, error.found) == (ExitCode.USAGE, found)
