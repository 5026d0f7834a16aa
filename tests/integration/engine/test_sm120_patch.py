"""The SM120 fusion patch on the installed SGLang's own files: it applies with zero fuzz, opens every gate
for SM120 with the lever only, leaves SM90 and SM100 as they are, and no hunk is superfluous."""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Iterator
from functools import lru_cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PATCH = ROOT / "docker/patches/current/0001-sm120-allreduce-fusion.patch"
GATES = Path(__file__).parent / "sm120_patch_gates.py"
SITE = Path(sysconfig.get_path("purelib"))
FILES = re.findall(r"^--- a/(\S+)", PATCH.read_text(), flags=re.MULTILINE)

pytestmark = [
    pytest.mark.skipif(shutil.which("patch") is None, reason="needs patch"),
    pytest.mark.skipif(
        importlib.metadata.version("sglang") != "0.5.23", reason="the patch is for sglang 0.5.23"
    ),
]


def hunks() -> list[str]:
    """The patch as one text per hunk, each with its file's header."""
    parts: list[str] = []
    for file in re.split(r"(?m)^(?=--- a/)", PATCH.read_text())[1:]:
        header, *bodies = re.split(r"(?m)^(?=@@ )", file)
        parts += [header + body for body in bodies]
    return parts


def patched_tree(folder: Path, patches: list[str]) -> Path:
    """The two files as upstream (the patch undone, where the environment has it), with these patches."""
    for file in FILES:
        target = folder / file
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(SITE / file, target)
    undo = ["patch", "-p1", "-R", "--fuzz=0", "--force", "--dry-run", "-i", str(PATCH)]
    if subprocess.run(undo, cwd=folder, capture_output=True, check=False).returncode == 0:
        subprocess.run(
            [word for word in undo if word != "--dry-run"], cwd=folder, capture_output=True, check=True
        )
    for text in patches:
        done = subprocess.run(
            ["patch", "-p1", "--fuzz=0", "--force"],
            cwd=folder,
            input=text,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout
        assert "offset" not in done.stdout or len(patches) > 1, done.stdout
    return folder


@pytest.fixture(scope="module")
def gates(tmp_path_factory: pytest.TempPathFactory) -> Iterator[subprocess.Popen[str]]:
    """The process that is asked: it imports SGLang once."""
    log = tmp_path_factory.mktemp("gates") / "log"
    environment = {**os.environ, "SGLANG_USE_CPU_ENGINE": "1", "TORCHDYNAMO_DISABLE": "1"}
    with log.open("w") as errors:
        process = subprocess.Popen(
            [sys.executable, str(GATES)],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )
    with process:
        yield process
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(timeout=60) == 0, log.read_text()[-4000:]


@pytest.fixture(scope="module")
def answers(
    gates: subprocess.Popen[str], tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., dict[str, str]]:
    trees: dict[str, Path] = {}

    @lru_cache
    def ask(which: str, capability: int, lever: bool) -> dict[str, str]:
        if which not in trees:
            patches = {"upstream": [], "patched": [PATCH.read_text()]}.get(which)
            if patches is None:
                left_out = int(which)
                patches = [hunk for i, hunk in enumerate(hunks()) if i != left_out]
            trees[which] = patched_tree(tmp_path_factory.mktemp(which), patches)
        assert gates.stdin is not None
        assert gates.stdout is not None
        gates.stdin.write(f"{trees[which]} {capability} {int(lever)}\n")
        gates.stdin.flush()
        # Beside the answers stands what SGLang prints.
        line = next(line for line in gates.stdout if line.startswith("{"))
        result: dict[str, str] = json.loads(line)
        return result

    return ask


def test_it_applies_without_fuzz_or_offset(tmp_path: Path) -> None:
    patched_tree(tmp_path, [PATCH.read_text()])


def test_sm120_with_the_lever_passes_every_gate(answers: Callable[..., dict[str, str]]) -> None:
    got = answers("patched", 120, True)
    assert got["resolve trtllm"] == "trtllm"
    assert {got[f"applies at {n}"] for n in (1, 4, 2048)} == {"True"}
    assert {got[f"applies at {n}"] for n in (0, 2049)} == {"False"}
    assert {got[f"workspace of {n} ranks without multicast"] for n in (2, 4, 8)} == {"3"}
    # What stays refused, each for a reason of its own.
    for refused in ("auto", "mnnvl", "cutedsl", "trtllm multi-node", "mnnvl multi-node"):
        assert got[f"resolve {refused}"] == "ValueError", refused


@pytest.mark.parametrize(
    ("capability", "lever"), [(120, False), (90, False), (90, True), (100, False), (100, True)]
)
def test_everything_else_is_as_upstream(
    answers: Callable[..., dict[str, str]], capability: int, lever: bool
) -> None:
    upstream = answers("upstream", capability, False)
    assert "import" not in upstream, upstream
    assert answers("patched", capability, lever) == upstream
    assert (upstream["applies at 4"] == "True") == (capability != 120)


def test_no_hunk_can_be_left_out(answers: Callable[..., dict[str, str]]) -> None:
    whole = answers("patched", 120, True)
    without = [answers(str(i), 120, True) for i in range(len(hunks()))]
    assert len(without) == 6
    assert all(got != whole for got in without)
