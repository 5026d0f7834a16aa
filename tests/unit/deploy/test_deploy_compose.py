"""Docker's own listing, read; and a dockerd that is ours, told from one that is not."""

import json
from pathlib import Path

import pytest

from deploy_kit.deploy.checkout import find_checkout, read_settings_file
from deploy_kit.deploy.compose import container_error, own_dockerd, parse_containers
from deploy_kit.errors import DeployKitError
from deploy_kit.exit_codes import ExitCode


def line(status: str, service: str = "kimi-eagle", state: str = "running") -> str:
    return json.dumps(
        {
            "Labels": f"com.docker.compose.project=deploy-kit,com.docker.compose.service={service},x=",
            "Names": f"deploy-kit-{service}-1",
            "State": state,
            "Status": status,
            "Ports": "127.0.0.1:30000->30000/tcp",
            "Image": "deploy-kit/rehearsal:0.5.23-cpu",
        }
    )


@pytest.mark.parametrize(
    ("status", "health", "code"),
    [
        ("Up 10 minutes (healthy)", "healthy", None),
        ("Up 3 seconds (health: starting)", "starting", None),
        ("Up 5 minutes (unhealthy)", "unhealthy", None),
        ("Up 5 minutes", "", None),
        ("Exited (30) 5 minutes ago", "", 30),
        ("Exited (0) About a minute ago", "", 0),
        ("Created", "", None),
    ],
)
def test_a_container_s_state(status: str, health: str, code: int | None) -> None:
    (found,) = parse_containers(line(status) + "\n")
    assert (found.service, found.health, found.exit_code) == ("kimi-eagle", health, code)


def test_containers_come_by_service() -> None:
    found = parse_containers(line("Up 1 second", "prometheus") + "\n" + line("Up 1 second"))
    assert [one.service for one in found] == ["kimi-eagle", "prometheus"]
    assert parse_containers("") == []


@pytest.mark.parametrize("text", ["nonsense", "[]", "{}", '{"Labels": 1}'])
def test_an_answer_that_makes_no_sense(text: str) -> None:
    with pytest.raises(DeployKitError):
        parse_containers(text)


def test_docker_that_does_not_answer_has_its_code() -> None:
    error = container_error(
        "docker ps", "Cannot connect to the Docker daemon at unix:///var/run/docker.sock."
    )
    assert error.exit_code in (ExitCode.NO_DOCKER, ExitCode.DEPLOY_FAILED)
    assert error.remedy


def test_only_a_living_dockerd_is_ours(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    assert own_dockerd(pid_file, tmp_path) is None
    pid_file.write_text("17\n")
    assert own_dockerd(pid_file, tmp_path) is None
    (tmp_path / "17").mkdir()
    (tmp_path / "17/comm").write_text("bash\n")
    assert own_dockerd(pid_file, tmp_path) is None
    (tmp_path / "17/comm").write_text("dockerd\n")
    assert own_dockerd(pid_file, tmp_path) == 17
    pid_file.write_text("half wri")
    assert own_dockerd(pid_file, tmp_path) is None


def test_the_checkout_is_found_from_below() -> None:
    root = Path(__file__).parents[3]
    assert find_checkout(root / "tests/unit") == root


def test_the_settings_file(tmp_path: Path) -> None:
    assert read_settings_file(tmp_path) == {}
    (tmp_path / ".env").write_text("# a remark\nA=1\nB = x=y\n\n")
    assert read_settings_file(tmp_path) == {"A": "1", "B": "x=y"}
