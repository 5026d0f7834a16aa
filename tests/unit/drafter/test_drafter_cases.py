"""The collected real descriptions: verdict exactly, the deciding facts, and what must not happen."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from deploy_kit.drafter.check import check_drafter
from deploy_kit.drafter.findings import Report
from deploy_kit.drafter.paste import parse_paste

CASES = sorted((Path(__file__).parents[2] / "cases").glob("drafter-*.yaml"))


def read(name: str) -> tuple[dict[str, Any], Report]:
    path = next(case for case in CASES if case.stem.startswith(name))
    case = yaml.safe_load(path.read_text())
    return case, check_drafter(parse_paste(case["input"]))


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_verdict_and_facts(path: Path) -> None:
    case = yaml.safe_load(path.read_text())
    report = check_drafter(parse_paste(case["input"]))
    assert report.verdict == case["expect"]["verdict"], report.cause
    for key, value in case["expect"].get("facts", {}).items():
        assert report.facts[key] == value


def test_good_llama_style() -> None:
    _, report = read("drafter-01")
    assert "fc takes 3 x 7168" in report.cause
    assert "d2t length = draft_vocab_size" in report.cause
    assert "lm_head rows = draft_vocab_size" in report.cause
    assert "no embed_tokens needed: SGLang uses the target's" in report.cause


def test_missing_head_does_not_pass_because_the_server_starts() -> None:
    _, report = read("drafter-03")
    assert report.kind == "loads but will not accept"
    assert "lm_head missing while draft_vocab_size is set" in report.cause
    assert "remove draft_vocab_size (null)" in report.remedy


def test_pruned_vocabulary_without_map_is_not_accepted_as_optional() -> None:
    _, report = read("drafter-05")
    assert report.kind == "loads but will not accept"
    assert "without d2t" in report.cause
    assert "export d2t into the weights" in report.remedy and "eagle_meta.pt" in report.remedy
    # The case suggests a token map; the engine's code ignores one under EAGLE3.
    assert "ignores it" in report.remedy


def test_eagle1_head_is_not_renamed() -> None:
    _, report = read("drafter-07")
    assert "EAGLE-1/2 head" in report.cause and "2 x hidden" in report.cause
    assert "--speculative-algorithm EAGLE, not EAGLE3" in report.remedy
    assert "does not change the weights" in report.remedy


def test_speculators_layout() -> None:
    _, report = read("drafter-09")
    assert "speculators" in report.cause and "transformer_layer_config" in report.cause
    assert "convert config and names" in report.remedy


def test_eagle31_needs_a_version() -> None:
    case, report = read("drafter-11")
    assert "#26506" in report.cause and "#24663" in report.cause and "silently" in report.cause
    assert "check the pinned version" in report.remedy
    old = check_drafter(parse_paste(case["input"] + "\n--- versions\nsglang 0.5.12\n"))
    assert (old.verdict, old.kind) == ("reject", "loads but will not accept")
    new = check_drafter(parse_paste(case["input"] + "\n--- versions\nsglang==0.5.23\n"))
    assert new.verdict == "ok"
    without = "\n".join(line for line in case["input"].split("\n") if not line.startswith("fc_norm."))
    broken = check_drafter(parse_paste(without + "\n--- versions\nsglang==0.5.23\n"))
    assert broken.verdict == "reject" and "0 of the 3 fc_norm tensors" in broken.cause


def test_auxiliary_layers_beyond_the_target() -> None:
    case, report = read("drafter-13")
    assert "auxiliary layer 89 does not exist in a 61-layer target" in report.cause
    assert "another generation" in report.cause
    # One beyond the end is a way of counting, not another generation, until the version is known.
    shifted = case["input"].replace("89", "61")
    assert check_drafter(parse_paste(shifted)).verdict == "warn"
    assert check_drafter(parse_paste(shifted + "\n--- versions\nsglang 0.5.23\n")).verdict == "reject"
    assert check_drafter(parse_paste(case["input"].replace("89", "58"))).verdict == "ok"
