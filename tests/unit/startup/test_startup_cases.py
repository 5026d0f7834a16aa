"""The cases: real logs with right answers, every fact and every must_not."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import yaml

from deploy_kit.startup.explain import explain_bytes
from deploy_kit.startup.run import Explanation
from deploy_kit.startup.watcher import StartupWatcher

CASES = Path(__file__).parents[2] / "cases"
FILES = [*sorted(CASES.glob("startup-*.yaml")), *sorted((CASES / "own").glob("startup-*.yaml"))]

# The words that the cause and the remedy must hold, by case: the decisive facts of `expect` in keywords.
KEYWORDS: dict[str, tuple[str, str]] = {
    "startup-01": ("ready line", ""),
    "startup-03": ("arguments parsed; nothing loaded yet", ""),
    "startup-05": ("process groups|fell back from custom all-reduce", ""),
    "startup-07": (
        "out of memory while loading weights|71 %|GPU 2 first",
        "does not help|ranks|smaller checkpoint",
    ),
    "startup-09": ("at graph capture|FlashInfer|[9, 10]|12", "fusion|MoE"),
    "startup-11": ("assertion failed in rank TP0|init|exit -3 is the SIGQUIT", ""),
    "startup-13": ("numactl|membind|seccomp|cpuset", "SYS_NICE|SGLANG_NUMA_BIND_V2|28401"),
    "startup-15": ("size 1|300 s|own watchdog", ""),
    "startup-17": (
        "NCCL communicator init|Init torch distributed ends",
        "P2P|ACS|IOMMU|NCCL_P2P_DISABLE=1|NCCL_DEBUG",
    ),
    "startup-19": ("barrier expired|rank 1 was done|45 %|storage", "storage|--dist-timeout does not govern"),
    "startup-21": ("draft|kimi_k2|unknown to this image", "MLA EAGLE-3|another drafter"),
    "startup-23": ("unreachable|acme/target|neither a local directory nor cached", "mount|path|download"),
    "startup-25": ("rendezvous port 29733 in use|not the HTTP port", "once more|nccl-port|dist-init"),
    "startup-27": ("kernel compilation|12 %", ""),
    "startup-29": ("SIGBUS|mapped weights|truncated|/dev/shm", ""),
    "startup-31": ("no room for the KV pool|negative", "raise --mem-fraction-static|ranks"),
    "startup-33": ("1 request|scheduler is alive", ""),
}
# What must not be said, by case: in the cause, the remedy, or as the cause's id.
FORBIDDEN: dict[str, tuple[str, ...]] = {
    "startup-07": ("sigquit", "host memory", "oom killer"),
    "startup-09": ("out of memory", "mem-fraction"),
    "startup-11": ("oom killer", "killed"),
    "startup-13": ("oom", "unknown"),
    "startup-19": ("oom",),
    "startup-21": ("corrupt", "keyerror"),
    "startup-25": ("gloo", "30000"),
    "startup-29": ("_monitor", "tqdm"),
    "startup-31": ("lower",),
}


def load(path: Path) -> dict[str, Any]:
    case: dict[str, Any] = yaml.safe_load(path.read_text())
    return case


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_case(path: Path) -> None:
    case = load(path)
    expect = case["expect"]
    answer = explain_bytes(case["input"].encode())
    assert answer.verdict == expect["verdict"], answer
    for name, value in (expect.get("facts") or {}).items():
        assert answer.facts.get(name) == value, (name, answer.facts)
    if "cause_id" in expect:
        assert answer.cause_id == expect["cause_id"], answer
    said = f"{answer.cause}\n{answer.remedy}\n{answer.cause_id}".lower()
    for word in expect.get("must_not_say", []):
        assert word.lower() not in said, (word, said)
    for word in expect.get("must_say", []):
        assert word.lower() in said, (word, said)
    if answer.verdict in ("crashed", "hung"):
        assert answer.evidence
        assert answer.remedy
        assert answer.exit_code >= 30
    else:
        assert answer.exit_code == 0


@pytest.mark.parametrize("path", [p for p in FILES if p.parent.name == "cases"], ids=lambda path: path.stem)
def test_words_of_the_case(path: Path) -> None:
    answer = explain_bytes(load(path)["input"].encode())
    key = path.stem[:10]
    cause, remedy = KEYWORDS[key]
    said_cause = (answer.cause + " " + " ".join(answer.remarks)).lower()
    for word in filter(None, cause.split("|")):
        assert word.lower() in said_cause, (word, said_cause)
    for word in filter(None, remedy.split("|")):
        assert word.lower() in (answer.remedy or "").lower(), (word, answer.remedy)
    for word in FORBIDDEN.get(key, ()):
        assert word not in f"{answer.cause} {answer.remedy} {answer.cause_id}".lower()


def test_must_not_of_single_cases() -> None:
    ready = load(CASES / "startup-01-ready-tp8-interleaved.yaml")["input"]
    before, _, _ = ready.partition("[2026-03-02 10:16:41]")
    assert explain_bytes(before.encode()).verdict == "starting"  # not at 'Uvicorn running'
    hang = load(CASES / "startup-17-nccl-init-hang.yaml")["input"]
    assert explain_bytes(hang.replace(": 660", ": 20").encode()).verdict == "starting"
    compiling = load(CASES / "startup-27-deepgemm-precompile-long.yaml")["input"].encode()
    assert explain_bytes(compiling, silent_seconds=19 * 60).verdict == "starting"
    assert explain_bytes(compiling, silent_seconds=45 * 60).verdict == "hung"
    assert explain_bytes(compiling).phase != "loading"
    dump = load(CASES / "startup-03-serverargs-misleading-words.yaml")["input"].encode()
    assert "log_level=error" in " ".join(explain_bytes(dump).remarks)


def chopped(data: bytes, seed: int) -> Explanation:
    watcher = StartupWatcher()
    rng = random.Random(seed)
    at = 0
    while at < len(data):
        size = rng.choice((1, 2, 3, 7, 50, 400))
        watcher.feed(data[at : at + size])
        if rng.random() < 0.02:
            watcher.explain()  # asking changes nothing
            watcher.unfinished_progress()
        at += size
    watcher.close()
    return watcher.explain()


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_chopping_changes_nothing(path: Path) -> None:
    data = load(path)["input"].encode()
    whole = explain_bytes(data)
    for seed in range(2):
        assert chopped(data, seed) == whole


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_carriers_change_nothing(path: Path) -> None:
    text = load(path)["input"]
    whole = explain_bytes(text.encode())
    for prefix in ("kimi-eagle-1  | ", "2026-03-02T10:15:01.123456789Z ", "2026-03-02T10:15:01.5Z stderr F "):
        if text.startswith(("sglang", "--- ")):
            continue
        carried = "".join(
            line if line.startswith("--- ") else prefix + line for line in text.splitlines(keepends=True)
        )
        answer = explain_bytes(carried.encode())
        assert (answer.verdict, answer.cause_id, answer.phase) == (whole.verdict, whole.cause_id, whole.phase)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_windows_line_ends_and_bad_bytes(path: Path) -> None:
    text = load(path)["input"]
    whole = explain_bytes(text.encode())

    data = b"\xff\xfe\x80 noise\n" + text.replace("\n", "\r\n").encode()
    answer = explain_bytes(data)
    assert (answer.verdict, answer.cause_id) == (whole.verdict, whole.cause_id)
