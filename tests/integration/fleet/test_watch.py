"""A fleet that is watched: Prometheus on the gateway's machine, every host a target, and secrets from Vault.

The engines are stand-ins (stand_in/), and so is Grafana, which no archive here has; Prometheus, Alertmanager
and node-exporter are Debian's, in the images that `make up` builds. The tests build on each other, in order.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from .hosts import BOXES, GATEWAY, KEY, ROOT, Fleet, build, has_image, serving_versions

pytestmark = [pytest.mark.docker, pytest.mark.slow, pytest.mark.timeout(1500)]

IMAGES = {name: f"deploy-kit/{name}:debian" for name in ("prometheus", "alertmanager", "node-exporter")}
PASSWORD = "grafana-password-of-the-test"
TOKEN = "hf_token-that-nothing-here-wants"
TARGETS = "/var/lib/deploy-kit-monitoring/prometheus/targets"


@pytest.fixture(scope="module")
def watched(fleet: Fleet) -> Iterator[Fleet]:
    """The fleet with a host in the group monitoring and its secrets in a file that Vault encrypted."""
    missing = [image for image in IMAGES.values() if not has_image(image)]
    if missing:
        pytest.skip(f"`make up` builds {', '.join(missing)} where no registry answers; not here yet")
    images = {name: fleet.publish(image) for name, image in IMAGES.items()}
    images["grafana"] = fleet.publish(build("grafana", {}))
    fleet.watched = True
    folder = fleet.folder / "group_vars/all"
    folder.mkdir(parents=True)
    (fleet.folder / "vault-password").write_text("the password of the vault\n")
    secrets = {"roll_api_key": KEY, "monitoring_grafana_password": PASSWORD, "model_store_hub_token": TOKEN}
    vault = folder / "vault.yml"
    vault.write_text(json.dumps(secrets))
    subprocess.run(
        [str(Path(sys.executable).parent / "ansible-vault"), "encrypt", "--vault-password-file",
         str(fleet.folder / "vault-password"), str(vault)],
        check=True, capture_output=True,
    )  # fmt: skip
    assert KEY not in vault.read_text()
    (folder / "monitoring.yml").write_text(json.dumps({"monitoring_fleet_images": images}))
    yield fleet


def deploy(fleet: Fleet, image: str, *words: str, **variables: Any) -> Any:
    """Deploy with the key from Vault alone."""
    vault = ("--vault-password-file", str(fleet.folder / "vault-password"))
    return fleet.deploy(image, *vault, *words, roll_api_key_source="", **variables)


def page(fleet: Fleet, rest: str) -> str:
    """Fetch PORT/PATH on the monitoring's host, where its services are published on loopback."""
    script = (
        "import sys, urllib.request as r; o = r.build_opener(r.ProxyHandler({})); "
        "print(o.open('http://127.0.0.1:' + sys.argv[1], timeout=10).read().decode())"
    )
    return fleet.on(GATEWAY, f"python3 -c \"{script}\" '{rest}'")


def prometheus(fleet: Fleet, path: str) -> Any:
    """Ask the fleet's Prometheus."""
    return json.loads(page(fleet, f"9090{path}"))["data"]


def query(fleet: Fleet, expression: str) -> list[dict[str, Any]]:
    """Return an expression's series."""
    found: list[dict[str, Any]] = prometheus(fleet, f"/api/v1/query?query={quote(expression)}")["result"]
    return found


def targets(fleet: Fleet) -> dict[str, set[str]]:
    """Return the hosts of each job's targets that are up."""
    found: dict[str, set[str]] = {}
    for one in prometheus(fleet, "/api/v1/targets?state=active")["activeTargets"]:
        if one["health"] == "up":
            found.setdefault(one["labels"]["job"], set()).add(one["labels"]["host"])
    return found


def wait_for_targets(fleet: Fleet, wanted: dict[str, set[str]], *, seconds: float = 180) -> None:
    deadline = time.monotonic() + seconds
    while {job: hosts for job, hosts in targets(fleet).items() if job in wanted} != wanted:
        assert time.monotonic() < deadline, targets(fleet)
        time.sleep(2)


def test_a_dry_run_over_untouched_hosts_ends_well_and_touches_nothing(watched: Fleet, one: str) -> None:
    look = "ls -A /var/lib /etc/systemd/system /usr/local/lib /opt; docker ps -aq; docker images -q; id -a"
    before = [watched.on(name, look) for name in (GATEWAY, *BOXES)]
    answer = deploy(watched, one, "--dry-run")
    assert answer["changed"] > 0
    for box in BOXES:
        assert any(remark.startswith(f"{box}: nothing → ") for remark in answer["remarks"]), answer["remarks"]
    assert [watched.on(name, look) for name in (GATEWAY, *BOXES)] == before


def test_every_host_is_a_target_of_the_fleets_prometheus(watched: Fleet, one: str) -> None:
    deploy(watched, one)
    assert serving_versions(watched) == ["one"] * 3
    boxes = set(BOXES)
    wait_for_targets(
        watched, {"engine": boxes, "exporter": boxes, "node": {*boxes, GATEWAY}, "gateway": {GATEWAY}}
    )
    check = (
        "docker exec deploy-kit-monitoring-prometheus-1 promtool check config /etc/prometheus/prometheus.yml"
    )
    assert "SUCCESS" in watched.on(GATEWAY, f"{check} 2>&1")
    running = query(watched, 'sum by (host, service) (sglang:num_running_reqs{tp_rank="0"})')
    assert {(one["metric"]["host"], one["metric"]["service"]) for one in running} == {
        (box, "kimi-baseline") for box in BOXES
    }


def test_the_dashboard_of_the_fleet_shows_hosts_side_by_side(watched: Fleet) -> None:
    board = json.loads((ROOT / "monitoring/grafana/dashboards/fleet.json").read_text())
    shown: dict[str, set[str]] = {}
    for panel in board["panels"]:
        for target in panel.get("targets", []):
            expression = target["expr"]
            for variable in ("host", "service", "instance"):
                expression = expression.replace(f"${{{variable}}}", ".*").replace(f"${variable}", ".*")
            expression = expression.replace("$__rate_interval", "1m")
            series = query(watched, expression)  # an expression that is none fails here
            hosts = {str(one["metric"].get("host") or one["metric"].get("instance", "")) for one in series}
            shown.setdefault(panel["title"], set()).update(host.partition("/")[0] for host in hosts)
    assert set(BOXES) <= shown["Targets that answer"], shown
    # Stand-ins report requests and nothing else: the rest of the panels is empty, by nature.
    assert sum(set(BOXES) <= hosts for hosts in shown.values()) >= 2, shown


def test_the_same_again_changes_nothing_and_a_dry_run_agrees(watched: Fleet, one: str) -> None:
    again = deploy(watched, one)
    assert again["changed"] == 0, again["changed_steps"]
    dry = deploy(watched, one, "--dry-run")
    assert dry["changed"] == 0, dry["changed_steps"]


def test_no_secret_is_in_a_file_a_log_or_an_inspection(watched: Fleet, two: str) -> None:
    # Told to say everything, to change everything, over all hosts.
    inventory = watched.inventory(two, roll_api_key_source="")
    done = subprocess.run(
        [str(Path(sys.executable).parent / "ansible-playbook"), "-i", str(inventory), "ansible/deploy.yml",
         "-vvv", "--diff", "--vault-password-file", str(watched.folder / "vault-password")],
        cwd=ROOT, capture_output=True, text=True, check=False, timeout=1200, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:]
    secrets = {"key": KEY, "Grafana's password": PASSWORD, "hub's token": TOKEN}
    for name, secret in secrets.items():
        lines = [line for line in (done.stdout + done.stderr).splitlines() if secret in line]
        assert not lines, (name, [line.replace(secret, "SECRET")[:300] for line in lines[:5]])
    for host in (GATEWAY, *BOXES):
        pattern = " ".join(f"-e {secret}" for secret in secrets.values())
        folders = "/var/lib/deploy-kit* /etc /opt/deploy-kit /usr/local /var/log /root /tmp /run/systemd"
        found = watched.on(host, f"grep -rlF --exclude-dir=secrets {pattern} {folders} 2>/dev/null || true")
        assert found == "", (host, found)
        said = watched.on(host, "journalctl --no-pager")
        said += watched.on(host, "cat /proc/[0-9]*/cmdline /proc/[0-9]*/environ 2>/dev/null | tr '\\0' '\\n'")
        said += watched.on(host, "docker inspect $(docker ps -aq) 2>/dev/null || true")
        said += watched.on(host, "for c in $(docker ps -aq); do docker logs $c 2>&1; done")
        assert not [name for name, secret in secrets.items() if secret in said], host
    for box in BOXES:
        release = watched.state(box)["current"]["release"]
        folder = f"/var/lib/deploy-kit/releases/{release}"
        rendered = watched.on(
            box,
            f"cd {folder} && DEPLOY_KIT_RELEASE=x docker compose --env-file settings.env -f compose.yaml "
            "-f compose.rehearsal.yaml -f compose.fleet.yaml config",
        )
        assert "secrets/api_key" in rendered
        assert not [name for name, secret in secrets.items() if secret in rendered]
    rendered = watched.on(GATEWAY, "cd /var/lib/deploy-kit-monitoring && docker compose config")
    assert "GF_SECURITY_ADMIN_PASSWORD__FILE" in rendered
    assert PASSWORD not in rendered
    where = "/var/lib/deploy-kit-monitoring/secrets/grafana_password"
    assert watched.on(GATEWAY, f"stat -c '%a %u' {where}").strip() == "400 472"
    # It did arrive: the stand-in for Grafana reads it where Grafana does.
    hashed = page(watched, "3000/")
    assert hashed.strip() == hashlib.sha256(PASSWORD.encode()).hexdigest()


def test_what_a_box_serves_is_told_also_after_a_rollback(watched: Fleet, two: str) -> None:
    file = f"cat {TARGETS}/engine-box-1.yml"
    deploy(watched, two, "--limit", f"{GATEWAY},box-1", "--profile", "ngram")
    assert "kimi-ngram" in watched.on(GATEWAY, file)
    deploy(watched, two, "--limit", f"{GATEWAY},box-1", command="rollback")
    assert "kimi-baseline" in watched.on(GATEWAY, file)


def test_a_box_that_leaves_the_inventory_is_a_target_no_more(watched: Fleet, two: str) -> None:
    watched.absent = ("box-3",)
    try:
        deploy(watched, two)
        assert "box-3" not in watched.on(GATEWAY, f"ls {TARGETS}; cat {TARGETS}/node-fleet.yml")
        wait_for_targets(watched, {"engine": {"box-1", "box-2"}, "node": {"box-1", "box-2", GATEWAY}})
    finally:
        watched.absent = ()


def test_a_monitoring_that_is_gone_stops_no_rollback(watched: Fleet, two: str) -> None:
    watched.on(
        GATEWAY,
        f"rm -rf {TARGETS}; docker stop -t 1 deploy-kit-monitoring-prometheus-1",
    )
    deploy(watched, two, "--limit", f"{GATEWAY},box-2", command="rollback")
    assert serving_versions(watched, ["box-2"]) == ["one"]
