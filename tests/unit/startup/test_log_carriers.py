"""What collectors write before each line changes nothing of the answer, and nothing else is taken for it."""

# ruff: noqa: E501  (the lines of logs are data, and long)
from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from deploy_kit.startup.cause_table import CAUSES
from deploy_kit.startup.explain import explain_bytes
from deploy_kit.startup.lines import Line, parse_line

CASES = Path(__file__).parents[2] / "cases"
# Out of memory while loading, a library without the GPU's kernels, a failed assertion, a port that was taken.
STEMS = ("startup-07", "startup-09", "startup-11", "startup-25")

PREFIXES = {
    "kubectl-prefix": "[pod/kimi-eagle-7d9c5b8f6d-x2x9k/sglang] ",
    "kubectl-prefix-timestamps": "[pod/kimi-eagle-0/sglang] 2026-03-02T10:15:01.123456789Z ",
    "kubectl-timestamps": "2026-03-02T10:15:01.123456789Z ",
    "cri": "2026-03-02T10:15:01.123456789+01:00 stderr F ",
    "journal-short": "Mar 02 10:15:01 box docker[1234]: ",
    "journal-short-precise": "Mar 02 10:15:01.123456 box docker[1234]: ",
    "journal-short-iso": "2026-03-02T10:15:01+0000 box sglang[1234]: ",
    "journal-short-iso-colon": "2026-03-02T10:15:01+00:00 box sglang[1234]: ",
    "journal-short-iso-precise": "2026-03-02T10:15:01.123456+0000 box 4f1d2c3b4a59[1234]: ",
    "journal-short-full": "Mon 2026-03-02 10:15:01 UTC box sglang[1234]: ",
    "journal-with-unit": "Mon 2026-03-02 10:15:01 +02 box kimi@0.service[1234]: ",
    "syslog-3164": "<30>Mar  2 10:15:01 box docker/kimi-eagle[1234]: ",
    "syslog-5424": "<13>1 2026-03-02T10:15:01.123456+00:00 box sglang 1234 - - ",
    "syslog-5424-data": '<30>1 2026-03-02T10:15:01Z box docker 1234 kimi-eagle [timeQuality tzKnown="1" isSynced="[1\\]"] ',
    "klog": "E0317 12:00:00.000000       1 file.go:1] ",
    "stern": "kimi-eagle-7d9c5b8f6d-x2x9k sglang ",
    "stern-timestamps": "kimi-eagle-7d9c5b8f6d-x2x9k sglang 2026-03-02T10:15:01.123456789+00:00 ",
    "compose": "kimi-eagle-1  | ",
    "docker-service": "kimi_sglang.1.z9k3l2m1n0@box    | ",
    "docker-service-timestamps": "2026-03-02T10:15:01.123456789Z kimi_sglang.1.z9k3l2m1n0@box-2.lan    | ",
}


def _json(make: Callable[[str], dict[str, object]]) -> Callable[[str], str]:
    return lambda line: json.dumps(make(line))


TIME = "2026-03-02T10:15:01.123456789Z"
OBJECTS = {
    "json-file-spaces": _json(lambda line: {"log": line + "\n", "stream": "stderr", "time": TIME}),
    "json-file-other-order": _json(lambda line: {"time": TIME, "stream": "stderr", "log": line + "\n"}),
    "json-file-compact-other-order": lambda line: json.dumps(
        {"stream": "stderr", "log": line + "\n", "time": TIME}, separators=(",", ":")
    ),
    "collector-message": _json(
        lambda line: {"stream": "stderr", "message": line, "kubernetes": {"pod": "x"}}
    ),
    "collector-msg": _json(lambda line: {"container_name": "sglang", "msg": line}),
    "journal-json": _json(lambda line: {"__REALTIME_TIMESTAMP": "17", "_PID": "9", "MESSAGE": line}),
}


def _cut(prefix: str) -> Callable[[str], str]:
    """Editors and terminals cut the blank at the end of a line that was empty."""
    return lambda line: (prefix + line).rstrip()


CARRIERS: dict[str, Callable[[str], str]] = {
    **{name: prefix.__add__ for name, prefix in PREFIXES.items()},
    **{f"{name}-cut": _cut(prefix) for name, prefix in PREFIXES.items()},
    **OBJECTS,
}


def _case(stem: str) -> str:
    (path,) = CASES.glob(f"{stem}-*.yaml")
    text: str = yaml.safe_load(path.read_text())["input"]
    return text


def test_the_causes_are_different_ones() -> None:
    answers = [explain_bytes(_case(stem).encode()) for stem in STEMS]
    assert len({answer.cause_id for answer in answers}) == len(STEMS)
    assert all(answer.verdict == "crashed" and answer.cause_id != "unknown" for answer in answers)


@pytest.mark.parametrize("stem", STEMS)
@pytest.mark.parametrize("carrier", CARRIERS)
def test_the_answer_is_the_bare_logs(carrier: str, stem: str) -> None:
    bare = _case(stem)
    carried = "".join(CARRIERS[carrier](line) + "\n" for line in bare.splitlines())
    assert explain_bytes(carried.encode()) == explain_bytes(bare.encode())


@pytest.mark.parametrize("carrier", CARRIERS)
@pytest.mark.parametrize(
    "bare",
    [
        "[2026-03-02 10:15:09 DP0 TP3 EP3] Init torch distributed begin.",
        "[rank3]: RuntimeError: late",
        '  File "/sgl/x.py", line 3, in f',
        "torch.OutOfMemoryError: CUDA out of memory.",
    ],
)
def test_rank_stamp_and_indent_are_the_bare_lines(bare: str, carrier: str) -> None:
    line, own = parse_line(CARRIERS[carrier](bare)), parse_line(bare)
    assert (line.text, line.rank, line.tag, line.stamp, line.indented) == (
        own.text,
        own.rank,
        own.tag,
        own.stamp,
        own.indented,
    )
    assert line.stream.endswith(own.stream)


def test_pods_are_kept_apart() -> None:
    one, two = (parse_line(f"[pod/kimi-{number}/sglang] x") for number in (0, 1))
    assert one.stream != two.stream
    assert one.text == two.text == "x"


@pytest.mark.parametrize(
    "text",
    [
        # The time stamp alone was the carrier's; what follows is the engine's own.
        "Rank 0: RuntimeError: x",
        "File x: y",
        "box sglang: no process id, so it may be anything",
        # Nothing here is a carrier.
        "E0317 12:00:00.000000 12345 transfer_engine.cpp:81] a native library's own line",
        "[pod/only-a-name] x",
        "[E227 16:30:43.526 ProcessGroupNCCL.cpp:1785] late",
        "multi-head-attention kernel is not built",
        "kimi-eagle-0 sglang RuntimeError: x",
        "Mon 2026-03-02 is a day",
        "1 2026-03-02T10:15:01Z a b",
        "<13>nothing",
        '{"message": "CUDA out of memory", "object": "error"}',
        '{"timestamp": "2026-03-02T10:15:01Z", "event": "request.finished", "msg": "RuntimeError: x"}',
        '{"log": 3}',
        '{"log": "cut',
        "{'log': 'x'}",
        "{}",
        "[]}",
    ],
)
def test_nothing_else_is_taken_for_a_carrier(text: str) -> None:
    assert parse_line(text) == Line(text)
    assert parse_line(f"2026-03-02T10:15:01Z {text}") == Line(text)


def test_a_long_line_of_one_word_takes_no_time_to_speak_of() -> None:
    """Looked at in pieces that a carrier could be made of; a minute would be a regular expression gone wild."""
    for word in ("a-", "a", "a.", "<1", "1 ", "[pod/a/", "<13>1 2026-03-02T10:15:01Z a b c d [", "a@a"):
        assert parse_line(word * 8000).text


def test_remedies_are_right_for_both_pinned_engines_and_for_a_pasted_log() -> None:
    capture = CAUSES["oom-capture"].remedy
    assert "--cuda-graph-max-bs-decode" in capture
    assert "before SGLang 0.5.18 --cuda-graph-max-bs)" in capture
    unknown = explain_bytes(
        b"[2026-03-02 10:15:01] Scheduler hit an exception: Traceback (most recent call last):\n"
        b'  File "x.py", line 1, in y\nWeirdError: z\n\n'
    )
    assert unknown.cause_id == "unknown"
    assert "in this log" in (unknown.remedy or "")
