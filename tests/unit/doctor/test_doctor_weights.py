"""Disk, memory and read speed against a model's weights; what was not read is unknown."""

from __future__ import annotations

import pytest

from deploy_kit.configs.catalog import Catalog
from deploy_kit.configs.schema import Model
from deploy_kit.doctor.blocks import split_blocks
from deploy_kit.doctor.examine import examine
from deploy_kit.doctor.model import Verdict

MODEL = Catalog.find().load(Model, "kimi-k2.5")
HOST = Catalog.find().host("rtx-pro-6000-x8")


def verdicts(text: str) -> dict[str, tuple[Verdict, str]]:
    report = examine(split_blocks(text), host=HOST, model=MODEL, only=["weights"])
    return {finding.id: (finding.verdict, finding.cause) for finding in report.findings}


def df(size: str, free: str, mount: str = "/srv/models") -> str:
    return (
        f"$ df -h /srv/models\nFilesystem      Size  Used Avail Use% Mounted on\n"
        f"/dev/nvme0n1p1  {size}  1.0G  {free}  50% {mount}\n"
    )


@pytest.mark.parametrize(
    ("size", "free", "verdict", "word"),
    [
        ("7.0T", "3.0T", Verdict.OK, "has room"),
        ("500G", "400G", Verdict.FAIL, "can never hold"),
        ("1.0T", "300G", Verdict.OK, "if they are there already"),
        ("900G", "450G", Verdict.WARN, "cannot be on /srv/models yet"),
    ],
)
def test_the_disk_holds_the_weights_or_not(size: str, free: str, verdict: Verdict, word: str) -> None:
    found, cause = verdicts(df(size, free))["weights.disk"]
    assert (found, word in cause) == (verdict, True), cause


def test_a_disk_that_is_not_the_one_of_the_weights_does_not_count() -> None:
    assert verdicts(df("7.0T", "3.0T", "/home"))["weights.disk"][0] == Verdict.UNKNOWN
    assert verdicts(df("7.0T", "3.0T", "/srv/models-old"))["weights.disk"][0] == Verdict.UNKNOWN
    assert verdicts(df("7.0T", "3.0T", "/"))["weights.disk"][0] == Verdict.OK


@pytest.mark.parametrize(
    ("kilobytes", "verdict", "word"),
    [
        (1_500_000_000, Verdict.OK, "stay cached"),
        (250_000_000, Verdict.OK, "each start reads them"),
        (30_000_000, Verdict.WARN, "too little"),
    ],
)
def test_memory_for_the_load(kilobytes: int, verdict: Verdict, word: str) -> None:
    text = f"$ cat /proc/meminfo\nMemTotal:       1600000000 kB\nMemAvailable:   {kilobytes} kB\n"
    found, cause = verdicts(text)["weights.memory"]
    assert (found, word in cause) == (verdict, True), cause


@pytest.mark.parametrize(("speed", "verdict"), [("5.5 GB/s", Verdict.OK), ("120 MB/s", Verdict.WARN)])
def test_how_long_a_start_reads(speed: str, verdict: Verdict) -> None:
    text = f"$ dd if=a of=/dev/null\n268435456 bytes (268 MB, 256 MiB) copied, 0.05 s, {speed}\n"
    found, cause = verdicts(text)["weights.read"]
    assert found == verdict
    assert "minutes" in cause


def test_what_was_not_read_is_unknown_with_the_command() -> None:
    report = examine(split_blocks("$ lscpu\nArchitecture: x86_64\nCPU(s): 4\nSocket(s): 1\n"), model=MODEL)
    found = {f.id: f for f in report.findings if f.id.startswith("weights.")}
    assert set(found) == {"weights.disk", "weights.memory", "weights.read"}
    for finding in found.values():
        assert finding.verdict == Verdict.UNKNOWN
        assert "`" in (finding.remedy or "")


def test_without_a_model_nothing_is_said() -> None:
    report = examine(split_blocks(df("500G", "400G")), host=HOST)
    assert not [f for f in report.findings if f.id.startswith("weights.")]
