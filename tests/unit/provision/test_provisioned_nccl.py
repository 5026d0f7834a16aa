"""Which NCCL environment a host gets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from deploy_kit.errors import DeployKitError
from deploy_kit.provision.nccl import choose_nccl
from deploy_kit.receipts.model import Host, new_receipt
from deploy_kit.receipts.store import write_receipt

HOST = "rtx-pro-6000-x8"
DEFAULT = {"NCCL_P2P_LEVEL": "SYS"}


def receipt(folder: Path, *, host: str = HOST, rehearsal: bool = False, **summary: Any) -> Path:
    one = new_receipt(
        kind="allreduce", host=Host(name=host), rehearsal=rehearsal, subject={}, samples=[], summary=summary
    )
    return write_receipt(folder, one)


def choose(**changes: Any) -> Any:
    arguments = {
        "host": HOST,
        "given": {},
        "receipt": None,
        "existing": None,
        "existing_measured": False,
        "default": DEFAULT,
    }
    return choose_nccl(**{**arguments, **changes})


def test_the_default_says_that_it_is_not_measured() -> None:
    choice = choose()
    assert choice.environment == DEFAULT
    assert "not measured" in choice.source


def test_a_receipt_wins_over_the_default_and_the_file(tmp_path: Path) -> None:
    path = receipt(tmp_path, host_setting={"candidate": "LL", "environment": {"NCCL_PROTO": "LL"}})
    for place in (path, tmp_path):
        choice = choose(receipt=place, existing={"NCCL_PROTO": "Simple"}, existing_measured=True)
        assert choice.environment == {"NCCL_P2P_LEVEL": "SYS", "NCCL_PROTO": "LL"}
        assert "receipt" in choice.source


def test_what_the_probe_wrote_on_the_host_stays() -> None:
    assert choose(existing={"NCCL_PROTO": "LL"}, existing_measured=True).environment == {"NCCL_PROTO": "LL"}
    assert choose(existing={"NCCL_PROTO": "LL"}).environment == DEFAULT


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"rehearsal": True, "host_setting": {"environment": {}}}, "rehearsal"),
        ({"host": "other", "host_setting": {"environment": {}}}, "measured on other"),
        ({"host_setting": {"candidate": None, "unknown": "nothing was correct"}}, "nothing was correct"),
        ({"host_setting": {"environment": {"NCCL_ALGO": "Tree"}}}, "NCCL_ALGO=Tree"),
    ],
)
def test_a_receipt_that_cannot_decide_is_refused(tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    with pytest.raises(DeployKitError, match=words):
        choose(receipt=receipt(tmp_path, **changes))


def test_a_folder_without_a_fitting_receipt_is_refused(tmp_path: Path) -> None:
    receipt(tmp_path, rehearsal=True, host_setting={"environment": {}})
    with pytest.raises(DeployKitError, match="no receipt of an all-reduce measurement"):
        choose(receipt=tmp_path)


def test_an_algorithm_for_every_collective_is_never_written() -> None:
    with pytest.raises(DeployKitError, match="NCCL_ALGO=Tree"):
        choose(given={"NCCL_ALGO": "Tree"})
    assert choose(given={"NCCL_ALGO": "allreduce:tree"}).environment == {"NCCL_ALGO": "allreduce:tree"}
