"""What `up` refuses before anything changes, and who is named as the holder of a port."""

import os
import socket
from pathlib import Path

import pytest

from deploy_kit.deploy.machine import (
    Listener,
    free_bytes,
    listeners,
    listening_inodes,
    refuse_full_disk,
    refuse_taken_ports,
    refuse_without_engine,
)
from deploy_kit.deploy.up import Wish, choose_host
from deploy_kit.errors import DeployKitError
from deploy_kit.exit_codes import ExitCode


def test_neither_docker_nor_root() -> None:
    with pytest.raises(DeployKitError) as caught:
        refuse_without_engine(answers=False, root=False)
    assert caught.value.exit_code == ExitCode.NO_DOCKER
    assert "sudo make up" in str(caught.value)


@pytest.mark.parametrize(("answers", "root"), [(True, False), (False, True), (True, True)])
def test_docker_or_root_is_enough(answers: bool, root: bool) -> None:
    refuse_without_engine(answers=answers, root=root)


def test_a_full_disk_names_the_folder_and_both_sizes(tmp_path: Path) -> None:
    with pytest.raises(DeployKitError) as caught:
        refuse_full_disk(tmp_path, free_bytes=3_000_000_000)
    text = str(caught.value)
    assert caught.value.exit_code == ExitCode.DISK_FULL
    assert str(tmp_path) in text
    assert "3.0 GB free" in text
    assert "at least 8 GB" in text
    refuse_full_disk(tmp_path, free_bytes=8_000_000_000)


def test_free_space_of_a_folder_that_is_not_there_yet(tmp_path: Path) -> None:
    assert free_bytes(tmp_path / "a/b/c") == pytest.approx(free_bytes(tmp_path), rel=0.01)


def test_the_holder_of_a_port_is_found() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        (found,) = listeners([port, 1])
        assert found.port == port
        assert found.pid == os.getpid()
        with pytest.raises(DeployKitError) as caught:
            refuse_taken_ports([found])
    assert caught.value.exit_code == ExitCode.PORT_TAKEN
    assert str(os.getpid()) in str(caught.value)
    assert listeners([port]) == []
    refuse_taken_ports([])


def test_a_connected_socket_is_no_listener() -> None:
    row = "{}: 0100007F:{} {} {} 00000000:00000000 00:00000000 00000000 0 0 {} 1 0 100 0 0 10 0\n"
    table = (
        "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
        + row.format(0, "7530", "00000000:0000", "0A", 111)
        + row.format(1, "7531", "0100007F:9999", "01", 112)
        + "   2: mangled\n"
    )
    assert listening_inodes(table) == {30000: {"111"}}


def test_a_holder_one_may_not_see_is_said_so() -> None:
    assert "run as root" in str(Listener(80, None, None))


@pytest.mark.parametrize(
    ("wish", "gpus", "host"),
    [
        (Wish(), 0, "rehearsal"),
        (Wish(), 8, None),
        (Wish(host="rtx-pro-6000-x8"), 8, "rtx-pro-6000-x8"),
        (Wish(rehearsal=True), 8, "rehearsal"),
        (Wish(host="rehearsal"), 8, "rehearsal"),
        (Wish(rehearsal=False), 8, None),
    ],
)
def test_rehearsal_only_without_gpus_or_when_asked(wish: Wish, gpus: int, host: str | None) -> None:
    assert choose_host(wish, gpus=gpus) == host


@pytest.mark.parametrize("wish", [Wish(rehearsal=False), Wish(host="rtx-pro-6000-x8")])
def test_a_gpu_plan_without_gpus_is_refused(wish: Wish) -> None:
    with pytest.raises(DeployKitError) as caught:
        choose_host(wish, gpus=0)
    assert caught.value.exit_code == ExitCode.NO_GPU


def test_only_what_was_asked_for_becomes_a_variable() -> None:
    assert Wish().variables() == {"engine_profile": "eagle3"}
    assert Wish(profile="ngram", rehearsal=False, port=5, levers=("a",)).variables() == {
        "engine_profile": "ngram",
        "engine_rehearsal": "false",
        "engine_levers": ["a"],
        "engine_ports": {"kimi-eagle": 30000, "kimi-baseline": 30001, "kimi-ngram": 5},
    }


def test_an_unknown_profile_names_the_nearest() -> None:
    with pytest.raises(DeployKitError) as caught:
        Wish(profile="eagel3").variables()
    assert caught.value.exit_code == ExitCode.UNKNOWN_NAME
    assert "eagle3" in str(caught.value)
