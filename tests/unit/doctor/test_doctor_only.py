"""`--only` and `--from`: what is misspelt or empty is refused, with what was meant."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
import yaml

import deploy_kit.doctor
from deploy_kit.doctor.blocks import split_blocks
from deploy_kit.doctor.bundle import read_input
from deploy_kit.doctor.checks.ids import IDS, is_known, known_words
from deploy_kit.doctor.examine import examine
from deploy_kit.errors import DeployKitError
from deploy_kit.exit_codes import ExitCode

CASES = Path(__file__).parents[2] / "cases"
TEXTS = [
    yaml.safe_load(file.read_text())["input"]
    for file in sorted([*CASES.rglob("host-*.yaml"), *CASES.rglob("runtime-*.yaml")])
]


def _ids_in_source() -> set[str]:
    """Return the first argument of each Finding(…) in the doctor, a family up to its first blank."""
    found = set()
    for file in Path(deploy_kit.doctor.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if not (isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Finding" and node.args):
                continue
            first = node.args[0]
            for choice in (first.body, first.orelse) if isinstance(first, ast.IfExp) else (first,):
                if isinstance(choice, ast.JoinedStr):
                    choice = choice.values[0]
                if isinstance(choice, ast.Constant):
                    found.add(str(choice.value))
    return found


def test_the_list_of_ids_is_the_sources() -> None:
    named = _ids_in_source()
    assert len(named) > 80
    # Only these are made of other words: the differences from the host file.
    made = {known for known in IDS if known.startswith("expected.")}
    assert set(IDS) - made == named - made


def test_every_finding_of_every_case_is_known() -> None:
    ids = {finding.id for text in TEXTS for finding in examine(split_blocks(text)).findings}
    assert len(ids) > 20
    assert [name for name in ids if not is_known(name)] == []


@pytest.mark.parametrize(
    ("word", "meant"),
    [
        ("nosuch", "acs"),
        ("p2", "p2p"),
        ("iomu", "iommu"),
        ("gpu.bar", "gpu.bar1"),
        ("acs.redirects", "acs.redirect"),
        ("gpu.xid-", "gpu.xid"),
        ("link.widht", "link.width"),
        ("../x", "acs"),
        ("unread.", "unread"),
    ],
)
def test_a_word_that_is_no_check_is_refused_with_the_nearest(word: str, meant: str) -> None:
    with pytest.raises(DeployKitError) as refused:
        examine(split_blocks(TEXTS[0]), only=[word])
    assert refused.value.exit_code == ExitCode.USAGE
    assert refused.value.found == word
    assert meant in (refused.value.allowed or "")


@pytest.mark.parametrize(
    "word", ["p2p", "gpu", "gpu.xid-79", "environment.NCCL_ALGO", "weights", "unread.pci", "nccl"]
)
def test_a_check_that_could_not_be_made_is_unknown(word: str) -> None:
    report = examine(split_blocks("$ lscpu\nCPU(s): 4\n"), only=[word])
    assert report.verdict == "unknown"
    assert report.findings[0].id == f"{word}.not-checked"


def test_every_word_that_is_offered_is_taken() -> None:
    for word in known_words():
        examine(split_blocks(TEXTS[0]), only=[word])


def test_a_family_holds_its_members() -> None:
    text = "[    1.000000] NVRM: Xid (PCI:0000:01:00): 79, pid=1, GPU has fallen off the bus."
    assert [finding.id for finding in examine(split_blocks(text), only=["gpu.xid"]).findings] == [
        "gpu.xid-79"
    ]


@pytest.mark.parametrize("place", ["", " ", "\t"])
def test_an_empty_place_is_refused(place: str) -> None:
    with pytest.raises(DeployKitError) as refused:
        read_input(place)
    assert refused.value.exit_code == ExitCode.USAGE
