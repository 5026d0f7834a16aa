"""A whole first light without a GPU, against stand-in servers: real commands, real receipts, one file."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from deploy_kit.receipts import read_receipts

pytestmark = pytest.mark.timeout(1500)  # half a minute; minutes on a busy machine
pytest.importorskip("jinja2", reason="the report needs Jinja2, which the engine's image may not have")
ROOT = Path(__file__).parents[3]
KEY = "0123456789abcdef-the-servers-key"
HUB = "hf_ThisTokenMustNeverLeave"


@pytest.fixture
def stand_ins() -> Iterator[dict[str, str]]:
    """Start two stand-in servers: one token an event, and two (which looks like speculation)."""
    processes, urls = [], {}
    try:
        for profile, tokens in (("baseline", 1), ("eagle3", 2)):
            process = subprocess.Popen(
                [
                    sys.executable, "-m", "deploy_kit.bench.standin_server",
                    "--gap-ms", "4", "--first-ms", "5", "--tokens-per-event", str(tokens),
                ],
                stdout=subprocess.PIPE,
                text=True,
                cwd=ROOT,
            )  # fmt: skip
            processes.append(process)
            assert process.stdout is not None
            urls[profile] = f"http://127.0.0.1:{int(process.stdout.readline())}"
        yield urls
    finally:
        for process in processes:
            process.kill()
            process.wait()
            if process.stdout is not None:
                process.stdout.close()


def firstlight(folder: Path, urls: dict[str, str], *more: str) -> subprocess.CompletedProcess[str]:
    key = folder / "key"
    key.write_text(KEY + "\n")
    servers = [word for profile, url in urls.items() for word in ("--server", f"{profile}={url}")]
    # No Docker and no torch: what needs them has to be skipped with its reason, not to fail the rest.
    environment = {**os.environ, "PATH": "/nowhere", "HF_TOKEN": HUB, "NVIDIA_VISIBLE_DEVICES": "none"}
    environment.pop("DEPLOY_KIT_TORCH_PYTHON", None)
    return subprocess.run(
        [
            sys.executable, "-m", "deploy_kit", "firstlight", *servers, "--api-key-file", str(key),
            "--concurrency", "1,2", "--rounds", "2", "--requests", "2", "--output-tokens", "24",
            "-o", str(folder / "light.tar.gz"), *more,
        ],
        check=False,
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=environment,
        timeout=600,
    )  # fmt: skip


def unpacked(path: Path) -> dict[str, bytes]:
    with tarfile.open(path) as tar:
        return {m.name: (tar.extractfile(m) or io.BytesIO()).read() for m in tar.getmembers()}


@pytest.mark.skipif(Path("/dev/nvidia0").exists(), reason="this is the rehearsal; there is a GPU here")
def test_a_rehearsed_first_light_measures_decides_reports_and_packs(
    tmp_path: Path, stand_ins: dict[str, str]
) -> None:
    planned = firstlight(tmp_path, stand_ins, "--dry-run", "--json")
    assert planned.returncode == 0, planned.stderr
    assert json.loads(planned.stdout)["estimate_seconds"] > 0
    assert not (tmp_path / "light.work").exists()

    done = firstlight(tmp_path, stand_ins, "--json")
    answer = json.loads(done.stdout)
    steps = answer["steps"]
    assert done.returncode == 0, (done.stderr, steps)
    assert steps["probe-fusion"] == {**steps["probe-fusion"], "outcome": "skipped", "why": "no GPU"}
    for name in ("doctor", "bench-baseline-1", "bench-eagle3-1", "decide", "report"):
        assert steps[name]["outcome"] == "done", steps[name]
    if steps["probe-allreduce"]["outcome"] == "skipped":
        assert "torch" in steps["probe-allreduce"]["why"]

    files = unpacked(tmp_path / "light.tar.gz")
    assert sorted(name.removeprefix("firstlight/") for name in files) == answer["files"]
    for name, data in files.items():
        assert KEY.encode() not in data, name
        assert HUB.encode() not in data, name
    for name in ("README.md", "report.html", "report.md", "decide.json", "doctor/report.json"):
        assert f"firstlight/{name}" in files
    assert b"REHEARSAL" in files["firstlight/README.md"]
    page = files["firstlight/report.html"].decode()
    assert page.index("REHEARSAL") < page.index("<h1>")
    assert "STAND-IN" in page
    decision = json.loads(files["firstlight/decide.json"])
    assert decision["rehearsal"] is True
    (tmp_path / "shared").mkdir()
    for name, data in files.items():
        if "/receipts/" in name:
            (tmp_path / "shared" / Path(name).name).write_bytes(data)
    received = read_receipts(tmp_path / "shared")
    assert not received.errors
    assert {r.subject["server_start"] for r in received if r.kind == "bench"} == {"baseline-1", "eagle3-1"}
    assert all(r.rehearsal for r in received)

    # Again: nothing that is done is done again, and nothing is measured twice.
    again = firstlight(tmp_path, stand_ins, "--json")
    assert again.returncode == 0, again.stderr
    assert len(read_receipts(tmp_path / "light.work" / "receipts", kind="bench")) == 2
    assert json.loads(again.stdout)["steps"]["bench-eagle3-1"] == steps["bench-eagle3-1"]


def test_a_server_that_is_gone_is_a_failed_step_and_the_other_is_measured(
    tmp_path: Path, stand_ins: dict[str, str]
) -> None:
    done = firstlight(tmp_path, {**stand_ins, "eagle3": "http://127.0.0.1:9"}, "--json", "--redact")
    answer = json.loads(done.stdout)
    assert done.returncode == 20, done.stderr
    assert answer["failed"] == ["bench-eagle3-1"]
    assert re.search(r"exit code 15: ", answer["steps"]["bench-eagle3-1"]["why"])
    assert answer["steps"]["bench-baseline-1"]["outcome"] == "done"
    assert "firstlight/report.html" in unpacked(tmp_path / "light.tar.gz")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--server", "other=http://a"], "--server cannot be read"),
        (["--traffic", "x:y"], "--traffic cannot be read"),
        (["--profile", "eagel3"], "no such profile"),
        (["-o", "no/such/folder/x.tar.gz"], "cannot be written there"),
    ],
)
def test_bad_options_are_refused_before_anything_runs(tmp_path: Path, words: list[str], message: str) -> None:
    done = firstlight(tmp_path, {}, *words)
    assert done.returncode in (2, 4, 5), done.stderr
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "light.work").exists()
