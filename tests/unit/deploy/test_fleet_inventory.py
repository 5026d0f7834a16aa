"""What is said of an inventory before a playbook runs over it."""

from __future__ import annotations

from pathlib import Path

import pytest

from deploy_kit.deploy.fleet import check_names, check_vault, groups_of, why_not_read
from deploy_kit.errors import DeployKitError
from deploy_kit.exit_codes import ExitCode

FILE = Path("my-fleet")
LISTING = {
    "_meta": {"hostvars": {}},
    "all": {"children": ["ungrouped", "engines", "gateway", "site"]},
    "engines": {"hosts": ["box-1", "box-2"]},
    "gateway": {"hosts": ["gateway-1"]},
    "site": {"children": ["engines"]},
}


def refused(
    groups: dict[str, list[str]], *, limit: str | None = None, fleet_only: bool = False
) -> DeployKitError:
    with pytest.raises(DeployKitError) as caught:
        check_names(groups, FILE, limit=limit, fleet_only=fleet_only)
    assert caught.value.exit_code == ExitCode.INPUT
    return caught.value


def test_groups_hold_the_hosts_of_their_children() -> None:
    groups = groups_of(LISTING)
    assert groups["all"] == ["box-1", "box-2", "gateway-1"]
    assert groups["site"] == ["box-1", "box-2"]
    assert groups["ungrouped"] == []


def test_a_fleet_and_a_single_machine_pass() -> None:
    check_names(groups_of(LISTING), FILE, limit="box-1,!gateway", fleet_only=True)
    check_names(groups_of(LISTING), FILE, limit="box-*", fleet_only=True)
    check_names({"all": ["laptop"], "ungrouped": ["laptop"]}, FILE, limit=None, fleet_only=False)


def test_a_misspelt_group_is_named() -> None:
    error = refused({"all": ["box-1"], "engine": ["box-1"], "ungrouped": []})
    assert error.remedy == "is engine meant to be engines?"
    assert "group engines" in str(error.allowed)


def test_what_is_for_fleets_wants_a_fleet() -> None:
    assert "1 hosts" in str(refused({"all": ["laptop"], "ungrouped": ["laptop"]}, fleet_only=True).found)
    assert "0 hosts" in str(refused({"all": []}).found)


@pytest.mark.parametrize(
    ("limit", "near"), [("bx-1", "box-1"), ("box-1,gatway", "gateway"), ("engines:!box-9", "box-1")]
)
def test_a_limit_that_names_nothing_is_refused(limit: str, near: str) -> None:
    error = refused(groups_of(LISTING), limit=limit)
    assert error.key == "--limit"
    assert near in str(error.remedy)


def test_ansibles_words_are_cut_to_what_is_wrong() -> None:
    said = "[WARNING]: Failed to parse inventory with 'yaml' plugin: YAML parsing failed: x\nOrigin: y\n"
    assert why_not_read(said) == "YAML parsing failed: x"
    assert why_not_read("[ERROR]: Attempting to decrypt but no vault secrets found\n").startswith(
        "Attempting"
    )
    assert why_not_read("") == "no word why"


def test_the_file_with_vaults_password_must_be_there(tmp_path: Path) -> None:
    with pytest.raises(DeployKitError):
        check_vault(tmp_path / "none")
    (tmp_path / "one").write_text("x")
    assert check_vault(tmp_path / "one") == (tmp_path / "one").resolve()
