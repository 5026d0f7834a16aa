"""What is said of an inventory before a playbook runs over it."""

from __future__ import annotations

from pathlib import Path

import pytest

from deploy_kit.deploy.fleet import (
    absolute_limit,
    check_names,
    check_vault,
    groups_of,
    limit_names,
    why_not_read,
)
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


@pytest.mark.parametrize("limit", ["", " ", ",", "!", ":,"])
def test_an_empty_limit_is_not_the_whole_fleet(limit: str) -> None:
    error = refused(groups_of(LISTING), limit=limit)
    assert error.summary == "the limit names no host"
    assert "leave --limit out" in str(error.remedy)


def test_the_file_of_a_limit_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert refused(groups_of(LISTING), limit="@/nonexistent").file == "/nonexistent"
    Path("retry").write_text("box-1\n\nbox-2\n")
    assert limit_names("@retry,gateway") == ["box-1", "box-2", "gateway"]
    assert absolute_limit("gateway,@retry") == f"gateway,@{tmp_path / 'retry'}"
    assert absolute_limit("box-1") == "box-1"
    check_names(groups_of(LISTING), FILE, limit="@retry", fleet_only=True)
    Path("retry").write_text("bx-1\n")
    assert "box-1" in str(refused(groups_of(LISTING), limit="@retry").remedy)
    Path("retry").write_text("\n")
    assert refused(groups_of(LISTING), limit="@retry").summary == "the limit names no host"


AUTO = "[WARNING]: Failed to parse inventory with 'auto' plugin: no root 'plugin' key found"
FIVE = (
    """[WARNING]: Failed to parse inventory with 'yaml' plugin: Invalid "hosts" entry for "engines" group, """
    """requires a dictionary, found "<class 'ansible.module_utils._AnsibleTaggedInt'>" instead."""
)
LOOP = "Adding group 'b' as child to 'a' creates a recursive dependency loop."


@pytest.mark.parametrize(
    ("said", "short"),
    [
        (FIVE, 'Invalid "hosts" entry for "engines" group, requires a dictionary, found int instead.'),
        (LOOP, LOOP),
    ],
)
def test_an_odd_shape_is_told_in_one_sentence(said: str, short: str) -> None:
    assert why_not_read(f"{AUTO}\n{said}") == short
