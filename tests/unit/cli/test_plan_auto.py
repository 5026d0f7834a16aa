"""`deploy-kit plan auto`: what receipts speak for, else the baseline with the reason."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from campaign_standins import receipt_of
from typer.testing import CliRunner

from deploy_kit.bench.run import About
from deploy_kit.cli.plan import app
from deploy_kit.configs.catalog import Catalog
from deploy_kit.errors import DeployKitError
from deploy_kit.plan.resolve import resolve
from deploy_kit.receipts import Receipt, write_receipt

ROOT = Path(__file__).parents[3]
CATALOG = Catalog(ROOT / "configs")


def keep(
    folder: Path, profile: str, *speeds: float, stack: str = "rehearsal", levers: tuple[str, ...] = ()
) -> list[Receipt]:
    plan = resolve(CATALOG, profile, host="rehearsal")
    kept = []
    for number, speed in enumerate(speeds):
        about = About(
            profile=profile,
            host="rehearsal",
            levers=levers,
            server_start=f"{profile} {number}",
            stand_in=None,
        )
        receipt = receipt_of(about, plan, speed, 2.75 if profile != "baseline" else 1.0, {"stack": stack})
        write_receipt(folder, receipt)
        kept.append(receipt)
    return kept


def auto(folder: Path, *options: str) -> dict[str, Any]:
    words = ["auto", "--host", "rehearsal", "--configs", str(CATALOG.folder), "--receipts", str(folder)]
    done = CliRunner().invoke(app, [*words, "--json", *options], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def test_the_faster_profile_is_planned_with_the_sum_that_says_so(tmp_path: Path) -> None:
    keep(tmp_path, "baseline", 100, 101, 99)
    keep(tmp_path, "eagle3", 140, 141, 139)
    answer = auto(tmp_path)
    assert answer["profile"] == "eagle3"
    assert answer["plan_id"] == resolve(CATALOG, "eagle3", host="rehearsal").plan_id, (
        "the plan is no other one"
    )
    assert answer["auto"]["from_evidence"]
    assert answer["auto"]["ratio"] == pytest.approx(1.4, rel=0.01)
    assert "break-even" in answer["auto"]["sum"]


def test_the_baseline_is_planned_when_it_is_the_faster(tmp_path: Path) -> None:
    keep(tmp_path, "baseline", 100, 101, 99)
    keep(tmp_path, "eagle3", 60, 61, 59)
    answer = auto(tmp_path)
    assert answer["profile"] == "baseline"
    assert answer["auto"]["from_evidence"]
    assert "slower" in answer["auto"]["reason"]


def test_without_evidence_it_is_the_baseline_with_the_reason(tmp_path: Path) -> None:
    nothing = auto(tmp_path / "nowhere")
    assert nothing["profile"] == "baseline"
    assert "is not there" in nothing["auto"]["reason"]
    assert not nothing["auto"]["from_evidence"]
    assert "no bench receipt" in auto(tmp_path)["auto"]["reason"]
    keep(tmp_path, "eagle3", 140, 141, 139)
    only = auto(tmp_path)
    assert only["profile"] == "baseline"
    assert "not measured" in only["auto"]["reason"]


def test_another_stacks_receipts_do_not_count(tmp_path: Path) -> None:
    keep(tmp_path, "baseline", 100, 101, 99, stack="rollback")
    keep(tmp_path, "eagle3", 140, 141, 139, stack="rollback")
    answer = auto(tmp_path)
    assert answer["profile"] == "baseline"
    assert not answer["auto"]["from_evidence"]


def test_one_round_each_is_not_enough(tmp_path: Path) -> None:
    keep(tmp_path, "baseline", 100)
    keep(tmp_path, "eagle3", 140)
    answer = auto(tmp_path)
    assert answer["profile"] == "baseline"
    assert "1 of 2 rounds" in answer["auto"]["reason"]


def test_a_damaged_receipt_gives_the_baseline(tmp_path: Path) -> None:
    keep(tmp_path, "baseline", 100, 101, 99)
    keep(tmp_path, "eagle3", 140, 141, 139)
    file = next(tmp_path.glob("bench-*.json"))
    file.chmod(0o644)
    file.write_text(file.read_text()[:-40])
    answer = auto(tmp_path)
    assert answer["profile"] == "baseline"
    assert not answer["auto"]["from_evidence"]


def test_only_profiles_that_can_be_served_count(tmp_path: Path) -> None:
    keep(tmp_path, "baseline", 100, 101, 99)
    keep(tmp_path, "eagle3", 120, 121, 119)
    keep(tmp_path, "eagle3-2step", 140, 141, 139)
    assert auto(tmp_path)["profile"] == "eagle3-2step"
    assert auto(tmp_path, "--among", "baseline,eagle3,ngram")["profile"] == "eagle3"
    with pytest.raises(DeployKitError, match="no such profile"):
        auto(tmp_path, "--among", "baseline,eagle4")
