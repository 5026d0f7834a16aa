"""Provisioning a real systemd machine: --check shows it, a run does it, a second run nothing, and the way
back."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

from deploy_kit.configs.schema import Host

from .machines import DAEMON_JSON, ROOT, Machine, Played, play, require_docker, start_machine, write_inventory

pytestmark = [pytest.mark.docker, pytest.mark.timeout(1500)]
# Minutes each: KIT_SLOW=1 runs them.
SKIPPED = pytest.mark.skipif(not os.environ.get("KIT_SLOW"), reason="takes minutes: KIT_SLOW=1 runs it")
TOKEN = "hf_thisisthetokenofthetest"
DRAFTER = "/srv/models/drafters/kimi-k2.5-eagle3-mla"


def slow(test: Callable[..., None]) -> Callable[..., None]:
    """Mark a test that takes minutes."""
    return pytest.mark.slow(SKIPPED(test))


def lay_down_drafter(machine: Machine, folder: Path) -> Path:
    """Put a tiny drafter of two shards on the machine; return its checksum file."""
    names = [f"model-{number:05d}-of-00002.safetensors" for number in (1, 2)]
    for name in names:
        machine.write(f"{DRAFTER}/{name}", f"weights of {name}")
    index = {"metadata": {"total_size": 10}, "weight_map": dict(zip("ab", names, strict=True))}
    machine.write(f"{DRAFTER}/model.safetensors.index.json", json.dumps(index))
    sums = folder / "drafter.sha256"
    sums.write_text(machine.run("sh", "-c", f"cd {DRAFTER} && sha256sum *.safetensors"))
    return sums


def test_a_machine_is_provisioned_once_and_put_back_byte_for_byte(machine: Machine, tmp_path: Path) -> None:
    sums = lay_down_drafter(machine, tmp_path)
    store = [{"model": "kimi-k2.5", "drafter": "eagle3", "checksums": str(sums)}]
    inventory = machine.inventory(model_store_models=store)
    before = machine.snapshot()

    shown = play(inventory, "provision.yml", "--check", "--diff")
    assert shown.code == 0, shown.output[-3000:]
    assert machine.snapshot() == before
    for words in (
        "iommu=pt pcie_aspm=off",
        "uvm_disable_hmm=1",
        '+  "live-restore": true',
        "numa_balancing = 0",
    ):
        assert words in shown.output

    first = play(inventory, "provision.yml")
    assert first.code == 0, first.output[-3000:]
    # What --check announced is what happened.
    assert shown.changed_tasks == first.changed_tasks
    assert "fail acs.redirect" in first.output
    # GRUB's own order of reading its files: contradictions are gone, the rest is kept.
    words = machine.read("/run/stand-in/grub.cfg").split()
    assert words == ["linux", "console=ttyS0", "quiet", "amd_iommu=on", "splash", "iommu=pt", "pcie_aspm=off"]
    assert "options nvidia_uvm uvm_disable_hmm=1" in machine.read("/etc/modprobe.d/deploy-kit-nvidia.conf")
    assert "NVreg_RegistryDwords" not in machine.read("/etc/modprobe.d/deploy-kit-nvidia.conf")
    host = Host.model_validate(tomllib.loads(machine.read("/etc/deploy-kit/host.toml")))
    assert [(node.gpus, node.cpus) for node in host.numa] == [
        ([0, 1, 2, 3], "0-63,128-191"),
        ([4, 5, 6, 7], "64-127,192-230,232-255"),
    ]
    assert host.nccl == {"NCCL_P2P_LEVEL": "SYS"}
    daemon = json.loads(machine.read("/etc/docker/daemon.json"))
    assert daemon["live-restore"] is True
    assert daemon["features"] == {"cdi": True}
    assert daemon["bip"] == "10.9.0.1/24"
    assert daemon["log-opts"] == {"labels": "mine", "max-size": "50m", "max-file": "5"}
    assert machine.run("stat", "-c", "%a", "/etc/docker/daemon.json").strip() == "600"
    # Live-restore is switched on before the restart that needs it.
    assert machine.read("/run/stand-in/docker").split() == ["start", "reload", "start"]
    for unit in ("deploy-kit-acs", "deploy-kit-gpu-settings"):
        assert machine.run("systemctl", "is-enabled", unit).strip() == "enabled"
    # The running kernel is the real machine's.
    running = {name: value for name, value in json.loads(before).items() if isinstance(value, str)}
    assert {name: json.loads(machine.snapshot())[name] for name in running} == running

    second = play(inventory, "provision.yml")
    assert second.code == 0, second.output[-3000:]
    assert second.changed == 0, second.output
    assert machine.read("/run/stand-in/docker").split() == ["start", "reload", "start"]

    back = play(inventory, "revert.yml")
    assert back.code == 0, back.output[-3000:]
    machine.run("rm", "-rf", "/var/lib/deploy-kit/models")  # what was verified is no change of the host
    machine.run("sh", "-c", "rmdir /var/lib/deploy-kit 2>/dev/null || true")
    now, then = json.loads(machine.snapshot()), json.loads(before)
    assert {
        key: (then.get(key), now.get(key))
        for key in now.keys() | then.keys()
        if now.get(key) != then.get(key)
    } == {}
    assert machine.read("/etc/docker/daemon.json") == DAEMON_JSON
    assert "iommu=pt" not in machine.read("/run/stand-in/grub.cfg")


def test_a_machine_without_a_gpu_is_read_by_the_doctor_and_refused(machine: Machine) -> None:
    before = machine.snapshot()
    refused = play(machine.inventory(provision_capture=""), "provision.yml")
    assert refused.code != 0
    assert "has no NVIDIA GPU on its PCI bus" in refused.words
    assert "(exit code 11)" in refused.words
    assert machine.snapshot() == before


def test_a_wrong_inventory_is_refused_before_any_host_is_touched(tmp_path: Path) -> None:
    # No such address: whoever connects, fails otherwise.
    inventory = write_inventory(
        tmp_path,
        "box1",
        ansible_host="192.0.2.1",
        kernel_iommu=False,
        nccl_environment={"NCCL_ALGO": "Tree"},
        pcie_host_iommo="x",
    )
    refused = play(inventory, "provision.yml")
    assert refused.code != 0
    for words in (
        "has 3 problems; no host was touched",
        'kernel_iommu: "off"',
        "NCCL_ALGO=allreduce:tree",
        "did you mean pcie_host_iommu",
        "(exit code 3)",
    ):
        assert words in refused.words
    assert "unreachable=0" in refused.output


@slow
def test_switched_off_roles_change_nothing(machine: Machine) -> None:
    roles = ("nvidia_driver", "pcie_host", "numa", "nccl_env", "container_engine", "model_store")
    before = machine.snapshot()
    done = play(machine.inventory(**{f"{role}_enabled": False for role in roles}), "provision.yml",
                "-e", '{"provision_accepted_findings": ["acs.redirect"]}')  # fmt: skip
    assert done.code == 0, done.output[-3000:]
    assert done.changed == 0
    assert machine.snapshot() == before


@slow
def test_a_fault_that_no_role_puts_right_stops_before_any_change(machine: Machine) -> None:
    before = machine.snapshot()
    stopped = play(machine.inventory(pcie_host_enabled=False), "provision.yml")
    assert stopped.code != 0
    assert "fail acs.redirect" in stopped.words
    assert "(exit code 21)" in stopped.words
    assert machine.snapshot() == before


@slow
def test_single_settings_follow_their_switches_and_go_when_switched_off(machine: Machine) -> None:
    forced = {"nvidia_driver_forced_p2p": True, "nvidia_driver_registry_dwords": "StandIn=0x11;Other=2"}
    on = machine.inventory(
        **forced, kernel_iommu="off", nvidia_power_limit=450, numa_binding=True, pcie_host_huge_pages=8,
        nccl_environment={"NCCL_ALGO": "allreduce:tree"},
    )  # fmt: skip
    done = play(on, "provision.yml", "--skip-tags", "container_engine,model_store")
    assert done.code == 0, done.output[-3000:]
    options = machine.read("/etc/modprobe.d/deploy-kit-nvidia.conf")
    assert 'options nvidia NVreg_RegistryDwords="StandIn=0x11;Other=2"' in options
    words = machine.read("/run/stand-in/grub.cfg").split()
    assert [word for word in words if "iommu" in word] in (["intel_iommu=off"], ["amd_iommu=off"])
    assert "--power-limit=450" in machine.read("/etc/systemd/system/deploy-kit-gpu-settings.service")
    host = Host.model_validate(tomllib.loads(machine.read("/etc/deploy-kit/host.toml")))
    assert host.flags["numa-node"] == [0, 0, 0, 0, 1, 1, 1, 1]
    assert host.nccl == {"NCCL_ALGO": "allreduce:tree"}
    assert machine.run("sh", "-c", "ls /etc/docker").strip() == "daemon.json"

    off = machine.inventory(
        kernel_iommu="leave", kernel_pcie_aspm="leave", pcie_disable_acs=True, limits_memlock="leave"
    )
    done = play(off, "provision.yml", "--tags", "pcie_host,nvidia_driver,numa")
    assert done.code == 0, done.output[-3000:]
    assert "iommu=nopt" in machine.read("/run/stand-in/grub.cfg")
    assert "NVreg_RegistryDwords" not in machine.read("/etc/modprobe.d/deploy-kit-nvidia.conf")
    present = machine.run("sh", "-c", "ls /etc/default/grub.d /etc/security/limits.d 2>/dev/null || true")
    assert "deploy-kit" not in present
    host = Host.model_validate(tomllib.loads(machine.read("/etc/deploy-kit/host.toml")))
    assert "numa-node" not in host.flags


@slow
def test_a_receipt_of_the_probe_decides_and_a_rehearsals_does_not(machine: Machine, tmp_path: Path) -> None:
    from deploy_kit.receipts.model import Host as ReceiptHost
    from deploy_kit.receipts.model import new_receipt
    from deploy_kit.receipts.store import write_receipt

    paths = {
        rehearsal: write_receipt(
            tmp_path / "receipts",
            new_receipt(
                kind="allreduce", host=ReceiptHost(name="rtx-pro-6000-x8"), rehearsal=rehearsal,
                subject={}, samples=[],
                summary={"host_setting": {"candidate": "LL", "environment": {"NCCL_PROTO": "LL"}}},
            ),
        )
        for rehearsal in (False, True)
    }  # fmt: skip
    tags = ("--tags", "numa,nccl_env")
    refused = play(machine.inventory(nccl_env_receipt=str(paths[True])), "provision.yml", *tags)
    assert refused.code != 0
    assert "never decides for real hardware" in refused.words
    done = play(machine.inventory(nccl_env_receipt=str(paths[False])), "provision.yml", *tags)
    assert done.code == 0, done.output[-3000:]
    host = Host.model_validate(tomllib.loads(machine.read("/etc/deploy-kit/host.toml")))
    assert host.nccl == {"NCCL_P2P_LEVEL": "SYS", "NCCL_PROTO": "LL"}


def nothing_shows_the_token(machine: Machine, done: Played) -> None:
    """Neither the playbook's output at its most talkative, nor a process, nor a file of the machine."""
    assert TOKEN not in done.output
    assert TOKEN not in machine.read("/run/stand-in/processes")
    left = machine.run(
        "sh", "-c", f"grep -rl {TOKEN} /etc /var /srv /root /tmp /run /home 2>/dev/null || true"
    )
    assert left.strip() == ""


@slow
def test_weights_are_refused_verified_resumed_and_fetched_without_showing_the_token(
    machine: Machine, tmp_path: Path
) -> None:
    sums = lay_down_drafter(machine, tmp_path)
    entry = {"model": "kimi-k2.5", "drafter": "eagle3", "checksums": str(sums)}
    tags = ("--tags", "model_store")

    machine.run("sh", "-c", f"echo more >>{DRAFTER}/model-00002-of-00002.safetensors")
    damaged = play(machine.inventory(model_store_models=[entry]), "provision.yml", *tags)
    assert damaged.code != 0
    assert "model-00002-of-00002.safetensors is damaged" in damaged.words
    verified = json.loads(machine.read("/var/lib/deploy-kit/models/kimi-k2.5-eagle3.json"))
    assert list(verified) == ["model-00001-of-00002.safetensors"]

    machine.write(
        f"{DRAFTER}/model-00002-of-00002.safetensors", "weights of model-00002-of-00002.safetensors"
    )
    resumed = play(machine.inventory(model_store_models=[entry]), "provision.yml", *tags)
    assert resumed.code == 0, resumed.output[-3000:]
    assert "ok: [" in resumed.output
    assert "2 of 2: model-00002-of-00002.safetensors" in resumed.output
    again = play(machine.inventory(model_store_models=[entry]), "provision.yml", *tags)
    assert (again.code, again.changed) == (0, 0)

    # Gone, and to be fetched by a stand-in of the hub's client that reads the token where the real one does.
    machine.run("sh", "-c", f"mkdir /kept && mv {DRAFTER}/* /kept")
    missing = play(machine.inventory(model_store_models=[entry]), "provision.yml", *tags)
    assert missing.code != 0
    assert "are not whole: there are no weights" in missing.words
    machine.write(
        "/usr/local/bin/hf-stand-in",
        "#!/bin/sh\n# STAND-IN for the hub's client (hf): no hub can be reached from the tests.\n"
        f'[ "$(cat "$HF_TOKEN_PATH")" = {TOKEN} ] || {{ echo 401 >&2; exit 1; }}\n'
        'stat -c %a "$HF_TOKEN_PATH" >/run/stand-in/token-mode\n'
        'tr "\\0" " " </proc/$$/cmdline >/run/stand-in/hf\n'
        "cat /proc/*/cmdline /proc/*/environ >/run/stand-in/processes\n"
        'for word; do folder=$word; done; mkdir -p "$folder"; cp /kept/* "$folder"\n',
        "0755",
    )
    token = tmp_path / "token"
    token.write_text(f"{TOKEN}\n")
    fetch = {**entry, "repository": "owner/name", "revision": "0" * 40}
    wanted = {
        "model_store_models": [fetch],
        "model_store_hub_client": "/usr/local/bin/hf-stand-in",
        "model_store_free_margin_gb": 0,
    }
    wrong = tmp_path / "wrong"
    wrong.write_text("hf_wrong")
    refused = play(machine.inventory(**wanted, model_store_hub_token_file=str(wrong)), "provision.yml", *tags)
    assert refused.code != 0
    assert "401" in refused.words
    assert "(exit code 45)" in refused.words
    done = play(
        machine.inventory(**wanted, model_store_hub_token_file=str(token)),
        "provision.yml",
        "-vvv",
        "--diff",
        *tags,
    )
    assert done.code == 0, done.output[-3000:]
    assert "owner/name --revision 0000" in machine.read("/run/stand-in/hf")
    assert machine.read("/run/stand-in/token-mode").strip() == "600"
    nothing_shows_the_token(machine, done)

    # The same from Vault, in a file beside the inventory.
    machine.run("sh", "-c", f"rm {DRAFTER}/* /run/stand-in/hf /run/stand-in/processes")
    password = tmp_path / "vault-password"
    password.write_text("the password of the vault\n")
    vault = tmp_path / "group_vars/all/vault.yml"
    vault.parent.mkdir(parents=True)
    vault.write_text(f"model_store_hub_token: {TOKEN}\n")
    ansible_vault = str(Path(sys.executable).parent / "ansible-vault")
    subprocess.run([ansible_vault, "encrypt", "--vault-password-file", password, vault], check=True)
    assert TOKEN not in vault.read_text()
    done = play(
        machine.inventory(**wanted), "provision.yml", "-vvv", "--diff",
        "--vault-password-file", str(password), *tags,
    )  # fmt: skip
    assert done.code == 0, done.output[-3000:]
    assert "owner/name --revision 0000" in machine.read("/run/stand-in/hf")
    nothing_shows_the_token(machine, done)
    vault.unlink()

    machine.run("sh", "-c", f"rm {DRAFTER}/model-00001*")
    small = play(
        machine.inventory(**{**wanted, "model_store_free_margin_gb": 10_000}), "provision.yml", *tags
    )
    assert small.code != 0
    assert "(exit code 13)" in small.words


@slow
def test_somebody_elses_change_is_not_overwritten_by_the_way_back(machine: Machine) -> None:
    inventory = machine.inventory()
    done = play(inventory, "provision.yml", "--tags", "pcie_host")
    assert done.code == 0, done.output[-3000:]
    machine.run("sh", "-c", "echo '# mine' >>/etc/sysctl.d/60-deploy-kit.conf")
    before = machine.snapshot()
    refused = play(inventory, "revert.yml")
    assert refused.code != 0
    assert "changed by somebody else" in refused.words
    assert machine.snapshot() == before
    shown = play(inventory, "revert.yml", "--check", "--diff", "-e", "revert_overwrite=true")
    assert shown.code == 0, shown.output[-3000:]
    assert "-# mine" in shown.output
    assert machine.snapshot() == before
    assert play(inventory, "revert.yml", "-e", "revert_overwrite=true").code == 0
    assert "deploy-kit" not in machine.run("sh", "-c", "ls /etc/sysctl.d")
    assert play(inventory, "revert.yml").changed == 0


@slow
@pytest.mark.parametrize("release", ["trixie", "noble"], ids=["Debian 13", "Ubuntu 24.04"])
def test_other_releases_are_provisioned_and_put_back(tmp_path: Path, release: str) -> None:
    require_docker()
    machine = start_machine(tmp_path, release)
    try:
        before = machine.snapshot()
        inventory = machine.inventory()
        first = play(inventory, "provision.yml")
        assert first.code == 0, first.output[-3000:]
        assert play(inventory, "provision.yml").changed == 0
        assert play(inventory, "revert.yml").code == 0
        assert machine.snapshot() == before
    finally:
        subprocess.run(["docker", "rm", "--force", machine.name], capture_output=True, check=False)


@slow
def test_docker_is_installed_from_ubuntus_own_archive(tmp_path: Path) -> None:
    require_docker()
    machine = start_machine(tmp_path, "noble", online=True)
    others = ("nvidia_driver", "pcie_host", "numa", "nccl_env", "model_store")
    inventory = machine.inventory(
        **{f"{role}_enabled": False for role in others}, provision_accepted_findings=["acs.redirect"]
    )
    try:
        done = play(inventory, "provision.yml")
        assert done.code == 0, done.output[-3000:]
        for words in (
            ("docker", "version"),
            ("docker", "compose", "version"),
            ("docker", "buildx", "version"),
        ):
            print(machine.run(*words).splitlines()[0])
        assert machine.run("docker", "info", "--format", "{{.LiveRestoreEnabled}}").strip() == "true"
        assert play(inventory, "provision.yml").changed == 0
        back = play(inventory, "revert.yml")
        assert back.code == 0, back.output[-3000:]
        assert machine.run("docker", "info", "--format", "{{.LiveRestoreEnabled}}").strip() == "false"
    finally:
        subprocess.run(
            ["docker", "rm", "--force", "--volumes", machine.name], capture_output=True, check=False
        )


def test_the_playbooks_parse() -> None:
    for playbook in ("provision.yml", "revert.yml"):
        done = subprocess.run(
            [str(Path(sys.executable).parent / "ansible-playbook"), f"ansible/{playbook}", "--syntax-check",
             "-i", "ansible/inventories/example"],
            cwd=ROOT, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
