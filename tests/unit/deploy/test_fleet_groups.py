"""A fleet's groups are judged before any host is touched, by the command and by the playbook."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from deploy_kit.deploy.groups import GROUPS, check_groups, main, misspelt
from deploy_kit.errors import DeployKitError
from deploy_kit.exit_codes import ExitCode

ANSIBLE = Path(__file__).parents[3] / "ansible"
BOXES = ["box-1", "box-2"]


def inventory(**groups: list[str]) -> dict[str, list[str]]:
    hosts = sorted({host for members in groups.values() for host in members})
    return {"all": hosts, "ungrouped": [], **groups}


def refused(groups: dict[str, list[str]], *, fleet_only: bool = False) -> DeployKitError:
    with pytest.raises(DeployKitError) as caught:
        check_groups(groups, "my-fleet", fleet_only=fleet_only)
    assert caught.value.exit_code == ExitCode.INPUT
    assert caught.value.file == "my-fleet"
    return caught.value


@pytest.mark.parametrize(
    ("name", "meant"), [("gatway", "gateway"), ("gateways", "gateway"), ("monitor", "monitoring")]
)
def test_a_misspelt_group_beside_right_engines_is_named(name: str, meant: str) -> None:
    error = refused(inventory(engines=BOXES, **{name: ["g-1"]}))
    assert error.remedy == f"is {name} meant to be {meant}?"


def test_a_misspelt_gateway_on_the_monitorings_host_is_named() -> None:
    assert refused(inventory(engines=BOXES, monitoring=["g-1"], gatway=["g-1"])).key == "gatway"


def test_a_host_in_none_of_the_groups_is_named_with_where_it_is() -> None:
    error = refused(inventory(engines=BOXES, load_balancer=["g-1"]))
    assert (error.key, error.found) == ("g-1", "g-1 in load_balancer")
    assert refused({**inventory(engines=BOXES), "all": [*BOXES, "g-1"]}).found == "g-1 in no group"


@pytest.mark.parametrize(
    "extra",
    [
        {"site": [*BOXES, "g-1"]},  # a parent of all
        {"engines_rack_1": ["box-1"]},  # a part
        {"fleet_engines": BOXES},
        {"gateways": ["g-1", "m-1"]},  # a parent with a name like one of ours
        {"gpu_boxes": ["box-2"]},
    ],
)
def test_parents_and_parts_stay_allowed(extra: dict[str, list[str]]) -> None:
    groups = inventory(engines=BOXES, gateway=["g-1"], monitoring=["m-1"], **extra)
    check_groups(groups, "my-fleet", fleet_only=True)


def test_a_gateway_without_a_box_is_said_so() -> None:
    assert "the fleet has no box" in refused(inventory(engines=[], gateway=["g-1"])).summary


def test_single_machines_stay_allowed_but_not_for_a_fleets_playbook() -> None:
    machines = inventory(engines=[], gateway=[], laptops=["laptop"])
    check_groups(machines, "x", fleet_only=False)
    assert refused(machines, fleet_only=True).key == "engines"


NAMES = st.sampled_from([*GROUPS, "gatway", "engine", "site", "lb"])


@given(st.dictionaries(NAMES, st.lists(st.sampled_from(["a", "b", "c"]), unique=True), max_size=6))
def test_a_fleet_that_passes_has_every_host_in_its_groups(groups: dict[str, list[str]]) -> None:
    whole = inventory(**groups)
    try:
        check_groups(whole, "x", fleet_only=True)
    except DeployKitError as error:
        assert error.found
        return
    assert set(whole["all"]) == {host for name in GROUPS for host in groups.get(name, [])}
    assert not misspelt(whole)


@pytest.mark.parametrize(
    ("text", "code", "said"),
    [
        ({"groups": inventory(engines=BOXES), "inventory": "x", "fleet_only": True}, ExitCode.OK, ""),
        (
            {"groups": inventory(engines=BOXES, gatway=["g"]), "inventory": "hosts.yml", "fleet_only": False},
            ExitCode.INPUT,
            "hosts.yml",
        ),
        ({}, ExitCode.USAGE, "not an inventory's groups"),
    ],
)
def test_what_the_playbook_asks(
    text: dict[str, object],
    code: ExitCode,
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(json.dumps(text)))
    assert main() == int(code)
    assert said in capsys.readouterr().err


def plays(name: str) -> list[dict[str, object]]:
    """A playbook's plays, with those it imports in their places."""
    found: list[dict[str, object]] = []
    for play in yaml.safe_load((ANSIBLE / name).read_text()):
        imported = play.get("ansible.builtin.import_playbook")
        found += plays(imported) if imported else [play]
    return found


@pytest.mark.parametrize("playbook", ["deploy.yml", "rollback.yml"])
def test_groups_are_judged_first(playbook: str) -> None:
    first = plays(playbook)[0]
    assert first["name"] == "Judge the groups before any host is touched"
    assert first["gather_facts"] is False


def test_gateways_are_reached_before_any_box_is_touched_and_monitoring_stops_nothing() -> None:
    ours = {str(play["name"]): play for play in plays("deploy.yml")}
    order = list(ours)
    assert order.index("Reach every gateway and box") < order.index("Run the gateway")
    assert order.index("Run the gateway") < order.index("Go on only with every gateway")
    assert order.index("Go on only with every gateway") < order.index("Roll the boxes")
    monitoring = [play for play in ours.values() if play["hosts"] == "monitoring"]
    assert [play.get("ignore_unreachable") for play in monitoring] == [True]
    assert not monitoring[0].get("any_errors_fatal")
