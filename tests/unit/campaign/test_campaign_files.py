"""Campaign files: the ones that ship, and bad ones."""

from __future__ import annotations

from pathlib import Path

import pytest
from campaign_standins import ROOT

from deploy_kit.campaign.describe import claimed, describe_plan, duration
from deploy_kit.campaign.outlook import estimate
from deploy_kit.campaign.prepare import new_state, prepare
from deploy_kit.campaign.probes import read_answer, receipt_of
from deploy_kit.campaign.store import read_campaign
from deploy_kit.configs.catalog import Catalog
from deploy_kit.errors import DeployKitError
from deploy_kit.probe.candidates import named_candidates
from deploy_kit.probe.fusion import named_fusions

SHIPPED = sorted((ROOT / "configs" / "campaigns").glob("*.toml"))
WHOLE = """
name = "x"
description = "d"
question = "q"
[base]
profile = "eagle3"
[[lever]]
name = "nccl-ll"
"""


class Runner:
    name, stand_in, address, port = "serve", None, "127.0.0.1", 30000


@pytest.mark.parametrize("file", SHIPPED, ids=lambda path: path.stem)
def test_what_ships_resolves_on_the_reference_host(file: Path) -> None:
    campaign = read_campaign(file)
    assert campaign.name == file.stem
    prepared = prepare(
        campaign, Catalog(ROOT / "configs"), host="rtx-pro-6000-x8", address="127.0.0.1", port=30000
    )
    state = new_state(prepared, Runner())  # type: ignore[arg-type]
    assert state.campaign.schedule.repeats >= 2, "an interval needs two pairs"
    assert any(result.outcome == "pending" for result in state.levers)
    for result in state.levers:
        assert result.verdict == "unknown", "nothing is measured here yet"
        assert result.measured_cycle_saving_ms is None
        assert result.claimed
        assert result.claimed_by
    for step in campaign.lever:  # a probe must know the name
        if step.probe == "allreduce":
            assert named_candidates([step.candidate or ""], 8)
        elif step.probe == "fusion":
            assert named_fusions([step.candidate or ""], 8)
    assert "at most" in describe_plan(state, estimate(state))


def test_the_storys_plan_has_its_seven_levers() -> None:
    campaign = read_campaign(ROOT / "configs/campaigns/fast-verify.toml")
    assert len(campaign.lever) == 7
    assert campaign.lever[0].name == "nccl-two-channels", "environment variables before flags"
    assert campaign.lever[-1].name == "sm120-fusion", "our source patch last"


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('question = "q"', "", ["missing key", "question"]),
        ("[base]", "[base]\nprofil = 1", ["unknown key", "profil", "profile"]),
        ('name = "nccl-ll"', 'name = "nccl-ll"\nprobe = "allreduce"', ["candidate"]),
        ('name = "nccl-ll"', 'name = "nccl-ll"\ncandidate = "LL"', ["candidate"]),
        ('name = "nccl-ll"', 'name = "nccl-ll"\nclaimed_cycle_saving_ms = [3.0, 1.0]', ["least"]),
        ('name = "nccl-ll"', 'name = "nccl-ll"\n[[lever]]\nname = "nccl-ll"', ["each lever once"]),
        ('profile = "eagle3"', 'profile = "eagle3"\nlevers = ["nccl-ll"]', ["in the base already"]),
        ('name = "nccl-ll"', 'name = "combined"', ["may be called combined"]),
        ("[base]", "[schedule]\nrepeats = 0\n[base]", ["schedule.repeats"]),
        ("[base]", "[schedule]\nconfidence = 2.0\n[base]", ["schedule.confidence"]),
        ("[base]", "[base", ["not TOML"]),
    ],
)
def test_a_bad_file_names_the_key(tmp_path: Path, old: str, new: str, words: list[str]) -> None:
    file = tmp_path / "x.toml"
    assert old in WHOLE
    file.write_text(WHOLE.replace(old, new))
    with pytest.raises(DeployKitError) as caught:
        read_campaign(file)
    assert str(file) in str(caught.value)
    for word in words:
        assert word in str(caught.value)


def test_an_unknown_lever_is_refused_with_the_nearest(tmp_path: Path) -> None:
    file = tmp_path / "x.toml"
    file.write_text(WHOLE.replace("nccl-ll", "nccl-lll"))
    with pytest.raises(DeployKitError, match="no such lever") as caught:
        prepare(read_campaign(file), Catalog(ROOT / "configs"), host=None, address="127.0.0.1", port=1)
    assert "nccl-ll" in str(caught.value)


@pytest.mark.parametrize(
    ("entry", "code", "passed"),
    [
        ({"status": "ok"}, 0, True),
        ({"status": "ok"}, 20, True),
        ({"status": "wrong", "cause": "rank 1"}, 21, False),
        ({"status": "hang"}, 21, False),
        ({"status": "unsupported", "cause": "no mscclpp"}, 22, False),
        ({"status": "not-run"}, 22, None),
        ({"status": "ok", "acceptance": "reject"}, 21, False),
        ({"status": "ok", "acceptance": "accept"}, 0, True),
        (None, 0, None),
        ({"status": "ok"}, 11, None),
    ],
)
def test_what_a_probe_says(entry: dict[str, str] | None, code: int, passed: bool | None) -> None:
    answer = {"candidates": {} if entry is None else {"LL": entry}}
    assert read_answer(answer, "LL", code)[0] is passed


def test_the_probes_receipt_is_named() -> None:
    assert receipt_of({"files": ["r/allreduce-20261130T073157Z-5afe6839bc71.json"]}) == "5afe6839bc71"
    assert receipt_of({}) is None


def test_words_for_time_and_claims() -> None:
    assert [duration(s) for s in (45, 720, 23400)] == ["45 s", "12 min", "6.5 h"]
    campaign = read_campaign(ROOT / "configs/campaigns/fast-verify.toml")
    prepared = prepare(
        campaign, Catalog(ROOT / "configs"), host="rtx-pro-6000-x8", address="127.0.0.1", port=30000
    )
    words = [claimed(result) for result in new_state(prepared, Runner()).levers]  # type: ignore[arg-type]
    assert words[-1] == "15 to 18 ms"
