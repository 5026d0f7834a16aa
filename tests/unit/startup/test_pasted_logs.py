"""A log as people paste it: quoted, indented, as Docker's json-file driver keeps it, with the kernel's log after
it; the answer is the plain log's."""

# ruff: noqa: E501  (the lines of logs are data, and long)
from __future__ import annotations

import io
import json

import pytest

from deploy_kit.errors import DeployKitError
from deploy_kit.startup.explain import explain_bytes, explain_stream
from deploy_kit.startup.lines import margin_of
from deploy_kit.startup.report import read_log

BEGINNING = """\
[2026-11-03 10:15:01] server_args=ServerArgs(model_path='/models/k', tp_size=8, port=30000)
[2026-11-03 10:15:05 TP0] Load weight begin. avail mem=93.80 GB
Loading safetensors checkpoint shards:  50% Completed | 15/30 [00:31<00:31,  2.10s/it]
"""
LOG = (
    BEGINNING
    + """\
[2026-11-03 10:15:09 TP2] Scheduler hit an exception: Traceback (most recent call last):
  File "/sgl/model_runner.py", line 812, in load_model
    self.model = get_model(
torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 252.00 MiB. GPU 2 has a total capacity of 94.97 GiB

"""
)


def _json_file(log: str) -> str:
    return "".join(
        json.dumps(
            {"log": f"{line}\n", "stream": "stderr", "time": "2026-11-03T10:15:05Z"}, separators=(",", ":")
        )
        + "\n"
        for line in log.splitlines()
    )


@pytest.mark.parametrize(
    "paste",
    [
        LOG,
        "".join(f"> {line}".rstrip() + "\n" for line in LOG.splitlines()),
        "".join(f"> > {line}\n" for line in LOG.splitlines()),
        "".join(f"    {line}".rstrip() + "\n" for line in LOG.splitlines()),
        "".join(f"\t{line}\r\n" for line in LOG.splitlines()),
        _json_file(LOG),
    ],
    ids=["plain", "quoted", "quoted-twice", "indented", "tabs", "json-file"],
)
def test_the_answer_is_the_plain_logs(paste: str) -> None:
    for answer in (explain_bytes(paste.encode()), explain_stream(io.BytesIO(paste.encode()))):
        assert (answer.verdict, answer.cause_id, answer.facts["gpu"]) == ("crashed", "oom-load", 2)
        assert answer.facts["percent"] == 50


def test_one_line_without_it_and_there_is_no_margin() -> None:
    assert margin_of(b"  a\n  b\n") == b"  "
    assert margin_of(b"  a\n\n    b") == b"  "
    assert margin_of(b"  a\nb\n") == b""
    assert margin_of(b">>> a\n> b\n") == b">"
    assert margin_of(b"") == b""
    # The end of a traceback alone: its frames are indented, its last line is not.
    tail = b'  File "/sgl/loader.py", line 1, in load_model\n    x()\ntorch.OutOfMemoryError: CUDA out of memory.\n'
    assert margin_of(tail) == b""
    assert explain_bytes(tail).cause_id == "oom-load"


def test_a_gpu_that_is_gone_is_the_cause_of_what_its_rank_raised() -> None:
    raised = '[2026-11-03 10:20:09 TP5] Scheduler hit an exception: Traceback (most recent call last):\n  File "/sgl/scheduler.py", line 1, in event_loop\ntorch.AcceleratorError: CUDA error: unspecified launch failure\n\n'
    kernel = "[  900.0] NVRM: Xid (PCI:0000:41:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.\n"
    for log in (BEGINNING + raised + kernel, BEGINNING + kernel + raised):
        assert explain_bytes(log.encode()).cause_id == "gpu-lost"
    # A program's fault in the kernel's log names no better cause than the program's own words.
    other = kernel.replace("79", "31").replace("GPU has fallen off the bus.", "MMU Fault")
    assert explain_bytes((BEGINNING + raised + other).encode()).cause_id == "cuda-fault"


def test_a_log_that_cannot_be_read_on_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    from pathlib import Path

    class Broken(io.BytesIO):
        def read(self, _size: int | None = -1, /) -> bytes:
            raise OSError(5, "Input/output error")

    monkeypatch.setattr(Path, "open", lambda *_args, **_kwargs: Broken())
    with pytest.raises(DeployKitError) as raised:
        read_log(Path("engine.log"))
    assert "cannot read the log" in str(raised.value)
