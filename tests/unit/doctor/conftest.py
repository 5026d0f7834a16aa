"""How the variations of pasted outputs in test_variations_* are judged."""

from __future__ import annotations

import shlex
from collections.abc import Callable

import pytest

from deploy_kit.doctor.blocks import split_blocks
from deploy_kit.doctor.examine import examine
from deploy_kit.doctor.model import Verdict


@pytest.fixture
def judge() -> Callable[[str, str, str], None]:
    """Return what compares the doctor's answer to a text with the verdict it deserves and with marks.

    Marks are ids that must be found, ids with `!` that must not, and words with `~` that causes must have.
    """

    def compare(text: str, verdict: str, marks: str) -> None:
        report = examine(split_blocks(text))
        ids = {finding.id for finding in report.findings}
        shown = [(finding.id, finding.cause) for finding in report.findings]
        assert report.verdict == verdict, shown
        causes = "; ".join(finding.cause for finding in report.findings)
        for mark in shlex.split(marks):
            if mark.startswith("!"):
                assert mark[1:] not in ids, shown
            elif mark.startswith("~"):
                assert mark[1:] in causes, (mark, shown)
            else:
                assert mark in ids, (mark, shown)
        assert all(finding.remedy for finding in report.findings if finding.verdict is not Verdict.OK)

    return compare
