"""Whatever is pasted: no traceback, JSON that holds, and cut-off inputs never look better than whole ones."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from deploy_kit.doctor.blocks import split_blocks
from deploy_kit.doctor.examine import examine
from deploy_kit.doctor.model import Report, Unknown

CASES = Path(__file__).parents[2] / "cases"
TEXTS = [
    yaml.safe_load(file.read_text())["input"]
    for file in sorted([*CASES.glob("host-*.yaml"), *CASES.glob("runtime-*.yaml")])
]
QUICK = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def _sound(report: Report) -> None:
    shown = report.as_dict()
    json.dumps(shown, allow_nan=False)
    assert shown["verdict"] in ("ok", "warn", "fail", "unknown")
    assert shown["cause"]
    assert report.findings


@QUICK
@given(st.text(max_size=400))
def test_any_text(text: str) -> None:
    report = examine(split_blocks(text))
    _sound(report)


@QUICK
@given(st.sampled_from(TEXTS), st.integers(0, 4000), st.integers(0, 60), st.text(max_size=20))
def test_mangled_case(text: str, at: int, cut: int, put: str) -> None:
    at %= len(text)
    _sound(examine(split_blocks(text[:at] + put + text[at + cut :])))


@QUICK
@given(st.sampled_from(TEXTS), st.data())
def test_lines_in_any_order_or_missing(text: str, data: st.DataObject) -> None:
    lines = text.split("\n")
    chosen = data.draw(st.lists(st.sampled_from(lines), max_size=len(lines)))
    _sound(examine(split_blocks("\n".join(chosen))))


@QUICK
@given(st.lists(st.sampled_from(TEXTS), min_size=2, max_size=4))
def test_cases_together_are_as_bad_as_the_worst(texts: list[str]) -> None:
    # Facts of one machine: a fault in any output stays a fault; only "could not tell" may be cleared up.
    together = examine([block for text in texts for block in split_blocks(text)])
    _sound(together)
    faults = {f.id for text in texts for f in examine(split_blocks(text)).findings if f.verdict == "fail"}
    if faults:
        assert together.verdict == "fail"


@pytest.mark.parametrize("length", range(0, 1200, 13))
def test_truncated_topology_is_never_ok(length: int) -> None:
    text = next(text for text in TEXTS if "GPU7" in text and "\x1b[4m" in text)
    matrix_end = text.index("Legend")
    cut = text[: min(length, matrix_end)]
    report = examine(split_blocks(cut))
    # All cells and the NUMA node of the last row are there; what follows (the GPU's own node) is N/A anyway.
    whole = "64-127,192-230\t1" in cut.partition("\nGPU7")[2]
    assert report.verdict == ("ok" if whole else "unknown")


@pytest.mark.parametrize("text", ["", "\n\n", "--- dmesg\n", "# nvidia-smi -q\n", "$ lscpu\n", "\x00\x01"])
def test_nothing_is_unknown(text: str) -> None:
    assert examine(split_blocks(text)).verdict == "unknown"


def test_unread_source_is_unknown_and_says_what_to_run() -> None:
    report = examine([], [Unknown("kernel-log", "Operation not permitted", "sudo dmesg")])
    assert report.verdict == "unknown"
    assert any("sudo dmesg" in (finding.remedy or "") for finding in report.findings)


def test_only_unknown_word_is_not_passed() -> None:
    report = examine(split_blocks(TEXTS[0]), only=["p2p"])
    assert report.verdict == "unknown"
    assert report.findings[0].id == "p2p.not-checked"


@pytest.mark.parametrize(
    "text",
    [
        "b:1:2 [0] NCCL INFO Pattern 4, crossNic 0, nChannels 2, bw 15.00.000/15.0, type SYS/PIX",
        "01:00.0 3D controller: NVIDIA Corporation x\n\t\tLnkSta:\tSpeed 3.2.5GT/s, Width x16\n",
        "node 0 size: " + "9" * 5000 + " MB",
        "GPU" + "9" * 5000 + "\tX\tPIX",
        "NVRM: Xid (PCI:0000:01:00): " + "7" * 5000,
    ],
)
def test_numbers_that_are_none(text: str) -> None:
    _sound(examine(split_blocks(text)))
