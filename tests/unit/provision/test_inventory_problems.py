"""An inventory's variables are judged whole, by name, and before any host."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from deploy_kit.configs.catalog import Catalog
from deploy_kit.errors import DeployKitError
from deploy_kit.provision.inventory import Removed, problems, refuse
from deploy_kit.provision.variables import DOCTOR_VARIABLES, read_variables

ROOT = Path(__file__).parents[3]
VARIABLES = read_variables(ROOT / "ansible/roles")
CATALOG = Catalog.find(ROOT / "configs")


def found(given: dict[str, Any]) -> list[str]:
    return [str(problem) for problem in problems(given, VARIABLES, CATALOG)]


def test_the_example_inventory_is_sound() -> None:
    folder = ROOT / "ansible/inventories/example/group_vars"
    for path in sorted(folder.glob("*.yml")):
        assert found(yaml.safe_load(path.read_text())) == [], path.name


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"kernel_iommu": False}, ["kernel_iommu", "unquoted off", 'kernel_iommu: "off"']),
        ({"kernel_iommu": "pt"}, ["kernel_iommu", "off, passthrough, leave", "'pt'"]),
        (
            {"kernel_iommu": "off", "pcie_host_kernel_parameters": ["iommu=pt"]},
            ["iommu=pt contradicts kernel_iommu = off"],
        ),
        ({"pcie_host_kernel_parameters": ["x=$(reboot)"]}, ["name=value"]),
        ({"nccl_environment": {"NCCL_ALGO": "Tree"}}, ["NCCL_ALGO=Tree", "NCCL_ALGO=allreduce:tree"]),
        ({"nccl_environment": {"NCCL_BUFFSIZE": 131072}}, ["must be text"]),
        ({"nccl_environment": {"CUDA_VISIBLE_DEVICES": "0"}}, ["NCCL_* variables only"]),
        ({"nccl_environment": {"NCCL_PROTO": "LL"}, "nccl_env_receipt": "r.json"}, ["both set"]),
        (
            {
                "numa_nodes": [
                    {"node": 0, "gpus": [0, 1, 2, 3], "cpus": "0-63"},
                    {"node": 1, "gpus": [4, 5, 6, 7], "cpus": "60-127"},
                ]
            },
            ["overlap", "60, 61, 62, 63"],
        ),
        ({"numa_nodes": [{"node": 0, "gpus": [0, 0], "cpus": "0-3"}]}, ["two nodes", "GPUs 0-7"]),
        ({"numa_binding": True, "numa_enabled": False}, ["numa_enabled is off"]),
        ({"nvidia_driver_open_modules": False}, ["Blackwell", "12.0"]),
        ({"nvidia_driver_forced_p2p": True}, ["nvidia_driver_registry_dwords holds no words"]),
        ({"nvidia_driver_registry_dwords": "A=0x11"}, ["nvidia_driver_forced_p2p is off"]),
        ({"nvidia_driver": 580.95}, ["is a float, allowed: str", "put it in quotes"]),
        ({"nvidia_driver": "latest"}, ["a driver version such as 580.95.05"]),
        ({"nvidia_driver": "580.95.05", "nvidia_driver_branch": "570-server"}, [("nvidia_driver_branch "
            "570-server")]),
        ({"nvidia_power_limit": 5000}, ["0 to 1200 watts"]),
        ({"nvidia_container_cdi": False}, ["through CDI"]),
        ({"container_shm_size": "32"}, ["a size such as 32g"]),
        ({"pcie_host_sysctls": {"kernel.numa_balancing": 1}}, ["set kernel_numa_balancing"]),
        ({"model_store_models": [{"model": "kimi-k3"}]}, ["no such model", "kimi-k2.5"]),
        ({"model_store_models": [{"model": "kimi-k2.5", "repository": "o/n"}]}, [("revision with 40 "
            "hexadecimal")]),
        ({"model_store_models": [{"model": "kimi-k2.5", "drafter": "none"}]}, ["no drafter of that name"]),
        ({"model_store_hub_token": "secret", "model_store_hub_token_file": "f"}, ["both set"]),
        ({"provision_host": "rtx"}, ["no such host"]),
        ({"provision_host": "rehearsal", "provision_rehearsal": False}, ["contradicts provision_host"]),
        ({"pcie_host_iommo": "off"}, ["no such variable", "pcie_host_iommu"]),
        ({"kernel_iomu": "off"}, ["no such variable", "kernel_iommu"]),
        ({"provision_rehersal": True}, ["no such variable", "provision_rehearsal"]),
        ({"kernel_iommu": "off", "pcie_host_iommu": "leave"}, ["two names of one variable"]),
        ({"engine_rehearsal": "perhaps"}, ["not one of true, false, auto", "roles/engine/defaults"]),
        ({"engine_rehearsal": 1}, ["not one of true, false, auto"]),
        ({"roll_port": 99999999}, ["1 to 65535", "ansible/roles/roll/defaults/main.yml", "docs/fleet.md"]),
        ({"gateway_port": "70000"}, ["1 to 65535", "ansible/roles/gateway/defaults/main.yml"]),
        ({"monitoring_node_port": 0}, ["1 to 65535", "ansible/roles/monitoring/defaults/main.yml"]),
        ({"engine_ports": {"kimi-eagle": 70000}}, ["1 to 65535", "kimi-eagle"]),
        ({"engine_image": f"r/x@sha256:{'z' * 64}"}, ["64 hexadecimal digits"]),
        ({"roll_image": "r/x@sha256:00"}, ["64 hexadecimal digits"]),
    ],
)  # fmt: skip
def test_what_is_refused_says_why_and_what_to_do(given: dict[str, Any], words: list[str]) -> None:
    text = "\n".join(found(given))
    for word in words:
        assert word in text
    assert "Remedy:" in text


def test_what_the_fleet_may_say_is_sound() -> None:
    folder = ROOT / "ansible/inventories/fleet/group_vars"
    for path in sorted(folder.glob("*.yml")):
        assert found(yaml.safe_load(path.read_text())) == [], path.name
    for word in (True, False, "true", "False", "auto"):
        assert found({"engine_rehearsal": word}) == []
    assert found({"engine_image": "deploy-kit/sglang:1", "gateway_port": "30080", "roll_image": ""}) == []


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("rol_api_key_source", "roll_api_key_source"),
        ("gatway_port", "gateway_port"),
        ("engin_image", "engine_image"),
        ("monitorng_enabled", "monitoring_enabled"),
    ],
)
def test_a_misspelt_prefix_is_named(name: str, meant: str) -> None:
    told = [str(problem) for problem in problems({}, VARIABLES, CATALOG, others=[name])]
    assert len(told) == 1
    assert f"did you mean {meant}?" in told[0]


def test_names_of_other_people_are_left_alone() -> None:
    others = ["vault_roll_api_key", "my_engine_image", "site_port", "team", "proxy_enabled", "pool_port"]
    assert problems({}, VARIABLES, CATALOG, others=others) == []


def test_the_inventory_is_named() -> None:
    with pytest.raises(DeployKitError) as caught:
        refuse("box-1", problems({"roll_port": 0}, VARIABLES, CATALOG), "my-fleet/hosts.yml")
    assert caught.value.file == "my-fleet/hosts.yml"
    assert "docs/provision.md" not in str(caught.value)
    refuse("box-1", [])


def test_a_removed_variable_is_named_with_its_release() -> None:
    gone = {"pcie_host_old": Removed("0.3.0", "set kernel_iommu")}
    text = str(problems({"pcie_host_old": 1}, VARIABLES, CATALOG, gone)[0])
    assert text == "pcie_host_old: was removed in release 0.3.0. Remedy: set kernel_iommu"


def test_a_secret_is_never_printed() -> None:
    given = {
        "model_store_hub_token": "hf_verysecret",
        "model_store_hub_token_file": "x",
        "provision_host": "rtx",
    }
    assert "verysecret" not in "\n".join(found(given))


def test_words_of_extra_vars_count_as_what_they_say() -> None:
    assert found({"numa_enabled": "true", "provision_reboot_seconds": "900"}) == []


def test_other_peoples_variables_are_none_of_our_business() -> None:
    assert found({"ansible_user": "admin", "kernel_version_of_mine": "6.8", "my_team": "ops"}) == []


PLAIN = st.none() | st.booleans() | st.integers(-(10**9), 10**9) | st.text(max_size=12)
ANYTHING = st.recursive(
    PLAIN, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
)


@given(st.dictionaries(st.sampled_from(sorted(VARIABLES.options)), ANYTHING, max_size=5))
def test_no_inventory_gives_a_traceback(given: dict[str, Any]) -> None:
    for problem in problems(given, VARIABLES, CATALOG):
        assert problem.name
        assert problem.remedy


def test_the_doctors_names_are_the_roles_names() -> None:
    checks = "\n".join(path.read_text() for path in (ROOT / "deploy_kit/doctor/checks").glob("*.py"))
    used = {name.strip() for text in re.findall(r'ansible="([^"]+)"', checks) for name in text.split(",")}
    assert used <= set(DOCTOR_VARIABLES)
    table = (ROOT / "docs/doctor.md").read_text().partition("## The seam to Ansible")[2].partition("\n## ")[0]
    first_cells = re.findall(r"^\| (`.+?) \|", table, re.MULTILINE)
    rows = {name for cell in first_cells for name in re.findall(r"`(\w+)`", cell)}
    assert rows == set(DOCTOR_VARIABLES)
    defaults: dict[str, Any] = {}
    for path in (ROOT / "ansible/roles").glob("*/defaults/main.yml"):
        defaults |= yaml.safe_load(path.read_text()) or {}
    for alias, name in DOCTOR_VARIABLES.items():
        assert name in VARIABLES.options
        # The role's variable takes the doctor's name where they differ; what only switches a role has one
        # name.
        assert alias == name or f"{alias} | default(" in str(defaults[name])


@pytest.mark.parametrize(
    "role",
    [
        "validate_inventory",
        "host_doctor",
        "host_reboot",
        "nvidia_driver",
        "pcie_host",
        "numa",
        "nccl_env",
        "container_engine",
        "model_store",
    ],
)
def test_every_default_has_its_specification(role: str) -> None:
    defaults = yaml.safe_load((ROOT / f"ansible/roles/{role}/defaults/main.yml").read_text())
    spec = yaml.safe_load((ROOT / f"ansible/roles/{role}/meta/argument_specs.yml").read_text())
    assert set(defaults) <= set(spec["argument_specs"]["main"]["options"])
    for name, option in spec["argument_specs"]["main"]["options"].items():
        assert option["description"].endswith("."), name
