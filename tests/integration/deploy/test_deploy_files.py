"""The playbook and the Compose files, read by the tools that will run them. Nothing is started."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from deploy_kit.deploy.checkout import DEFAULT_PORTS, SERVICES

ROOT = Path(__file__).parents[3]
ENGINES = ("kimi-baseline", "kimi-eagle", "kimi-ngram")


def role(name: str, file: str) -> Any:
    return yaml.safe_load((ROOT / "ansible/roles" / name / file).read_text())


def compose(*overlays: str, profiles: str = "") -> Any:
    if shutil.which("docker") is None:
        pytest.skip("no docker command: `make up` installs it")
    done = subprocess.run(
        [
            "docker",
            "compose",
            "-f",
            "compose.yaml",
            *(word for overlay in overlays for word in ("-f", f"compose.{overlay}.yaml")),
            "config",
            "--format",
            "json",
        ],
        cwd=ROOT / "docker",
        capture_output=True,
        text=True,
        check=False,
        env={
            "PATH": os.environ["PATH"],
            "HOME": os.environ.get("HOME", "/"),
            "DEPLOY_KIT_IMAGE": "engine:1",
            "DEPLOY_KIT_PROMETHEUS_IMAGE": "prometheus:1",
            "COMPOSE_PROFILES": profiles,
        },
    )
    if "is not a docker command" in done.stderr:
        pytest.skip("docker without Compose v2: `make up` installs it")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_the_role_and_the_command_have_one_table_of_services() -> None:
    assert role("engine", "vars/main.yml")["engine_services"] == SERVICES
    assert role("roll", "vars/main.yml")["roll_services"] == SERVICES
    ports = role("engine", "defaults/main.yml")["engine_ports"]
    assert {
        **ports,
        "prometheus": role("monitoring", "defaults/main.yml")["monitoring_prometheus_port"],
    } == DEFAULT_PORTS


@pytest.mark.parametrize("name", ["container_engine", "engine", "monitoring", "roll", "gateway"])
def test_every_default_is_documented(name: str) -> None:
    options = role(name, "meta/argument_specs.yml")["argument_specs"]["main"]["options"]
    assert set(role(name, "defaults/main.yml")) == set(options)


@pytest.mark.parametrize("overlay", ["gpu", "rehearsal"])
def test_every_service_is_locked_down(overlay: str) -> None:
    services = compose(overlay)["services"]
    for name, service in services.items():
        assert service["read_only"] is True, name
        assert service["cap_drop"] == ["ALL"], name
        assert service["security_opt"] == ["no-new-privileges"], name
        assert service["user"].split(":")[0] != "0", name
        assert {port["host_ip"] for port in service["ports"]} == {"127.0.0.1"}, name
        assert "healthcheck" in service, name
        assert "privileged" not in service, name
    assert len({service["ports"][0]["published"] for service in services.values()}) == len(services)


def test_the_monitoring_is_locked_down_and_leaves_nothing_out_with_a_registry() -> None:
    services = compose("gpu", "monitoring", profiles="gpu")["services"]
    assert set(services) == {
        *ENGINES, "prometheus", "alertmanager", "node-exporter", "grafana", "dcgm-exporter",
    }  # fmt: skip
    for name in ("alertmanager", "node-exporter", "grafana"):
        service = services[name]
        assert service["read_only"] is True, name
        assert service["cap_drop"] == ["ALL"], name
        assert service["security_opt"] == ["no-new-privileges"], name
        assert service["user"].split(":")[0] != "0", name
        assert {port["host_ip"] for port in service.get("ports", [])} <= {"127.0.0.1"}, name
        assert "healthcheck" in service, name
        assert "@sha256:" in service["image"], name
    assert services["dcgm-exporter"]["deploy"]["resources"]["reservations"]["devices"][0]["driver"] == "cdi"


@pytest.mark.parametrize("overlay", ["gpu", "rehearsal"])
def test_without_a_registry_grafana_and_dcgm_exporter_are_left_out(overlay: str) -> None:
    services = compose(overlay, "monitoring", "monitoring-debian", profiles="gpu")["services"]
    assert set(services) == {*ENGINES, "prometheus", "alertmanager", "node-exporter"}
    for name in ("alertmanager", "node-exporter"):
        assert services[name]["image"] == f"deploy-kit/{name}:debian"
        assert services[name]["pull_policy"] == "never"


def test_gpus_are_asked_for_with_gpus_only() -> None:
    with_gpus, without = compose("gpu")["services"], compose("rehearsal")["services"]
    for name in ENGINES:
        devices = with_gpus[name]["deploy"]["resources"]["reservations"]["devices"]
        assert devices[0]["driver"] == "cdi"
        assert with_gpus[name]["ulimits"]["memlock"] == -1
        assert with_gpus[name]["healthcheck"]["start_period"] == "45m0s"
        assert "deploy" not in without[name]
        assert "ulimits" not in without[name]
        assert writable(without[name]) == {
            "/var/lib/deploy-kit/receipts": False, "/var/lib/deploy-kit/starts": True,
        }  # fmt: skip
        assert writable(with_gpus[name]) == {
            "/models": False, "/etc/deploy-kit": False,
            "/var/lib/deploy-kit/receipts": False, "/var/lib/deploy-kit/starts": True,
        }  # fmt: skip


def writable(service: dict[str, Any]) -> dict[str, bool]:
    """Where a service's volumes are mounted, and whether it may write there."""
    return {volume["target"]: not volume.get("read_only", False) for volume in service["volumes"]}


def test_the_playbook_parses() -> None:
    done = subprocess.run(
        [str(Path(sys.executable).parent / "ansible-playbook"), "ansible/deploy.yml", "--syntax-check"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "ANSIBLE_CONFIG": str(ROOT / "ansible/ansible.cfg"), "LC_ALL": "C.UTF-8"},
    )
    assert done.returncode == 0, done.stderr
