"""A real machine's outputs (one H200 passed through to a virtual machine), identifiers removed."""

from __future__ import annotations

from pathlib import Path

from deploy_kit.doctor.blocks import split_blocks
from deploy_kit.doctor.examine import examine

TEXT = (Path(__file__).parent / "real" / "one-h200-in-a-vm.txt").read_text()


def test_real_output_is_read_whole() -> None:
    facts = examine(split_blocks(TEXT)).facts
    assert facts["gpus"] == 1
    assert facts["gpu_names"] == ["NVIDIA H200"]
    assert facts["compute_capability"] == "9.0"
    assert (facts["fb_mib"], facts["bar1_mib"]) == (143771, 262144)
    assert (facts["width"], facts["max_gen"], facts["pstate"]) == (16, 5, "P0")
    assert facts["open_module"] is True
    assert facts["persistence"] is True
    assert facts["numa_groups"] == {"0": [0]}
    assert facts["power_limit_w"] == 700
    assert facts["memlock_bytes"] == -1


def test_healthy_card_has_no_fault_and_the_vm_is_told() -> None:
    report = examine(split_blocks(TEXT))
    assert report.verdict == "warn"
    assert {finding.id for finding in report.worst} == {"gpu.virtual", "cpu.virtual", "driver.hmm"}
