"""A single machine that is deployed to over a connection: the plan stands on that machine's own host.toml."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from .machines import ROOT, Machine, write_inventory

pytestmark = [pytest.mark.docker, pytest.mark.timeout(600)]

PLAYBOOK = """\
- hosts: all
  gather_facts: true
  gather_subset: ["!all"]
  tasks:
    - ansible.builtin.include_role: {name: engine, tasks_from: preflight}
    - ansible.builtin.debug: {msg: "PLAN {{ engine_plan | to_json }} NALP"}
"""


def plan_of(machine: Machine, folder: Path) -> dict[str, Any]:
    """Run the role's choice of a plan over the machine, from a checkout that holds only this playbook."""
    checkout = folder / "checkout"
    (checkout / "ansible").mkdir(parents=True, exist_ok=True)
    (checkout / "ansible/look.yml").write_text(PLAYBOOK)
    for name in ("deploy_kit", "configs"):
        if not (checkout / name).exists():
            (checkout / name).symlink_to(ROOT / name)
    inventory = write_inventory(
        folder,
        machine.name,
        ansible_connection="community.docker.docker",
        ansible_python_interpreter="/usr/bin/python3",
        engine_profile="baseline",
    )
    (folder / "temporary").mkdir(exist_ok=True)
    done = subprocess.run(
        [str(Path(sys.executable).parent / "ansible-playbook"), "-i", str(inventory), "ansible/look.yml"],
        cwd=checkout, capture_output=True, text=True, check=False,
        env={**os.environ, "LC_ALL": "C.UTF-8", "ANSIBLE_NOCOLOR": "1", "TMPDIR": str(folder / "temporary"),
             "ANSIBLE_ROLES_PATH": str(ROOT / "ansible/roles"), "ANSIBLE_CALLBACK_RESULT_FORMAT": "json"},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr
    found = re.search(r"PLAN (\{.*\}) NALP", done.stdout)
    assert found is not None, done.stdout[-2000:]
    plan: dict[str, Any] = json.loads(json.loads(f'"{found[1]}"'))
    # The copy of the machine's file is gone again.
    assert not list((folder / "temporary").rglob("*.deploy-kit-host.toml"))
    return plan


def test_the_machines_own_file_decides(machine: Machine, tmp_path: Path) -> None:
    machine.run("touch", "/dev/nvidia0")  # a stand-in for a GPU: only its name is looked for
    without = plan_of(machine, tmp_path)
    text = (ROOT / "configs/hosts/rtx-pro-6000-x8.toml").read_text()
    text = text.replace('cpus = "64-127,192-255"', 'cpus = "64-127,192-230,232-255"')
    text = text.replace('NCCL_P2P_LEVEL = "SYS"', 'NCCL_P2P_LEVEL = "SYS"\nNCCL_PROTO = "LL"')
    machine.write("/etc/deploy-kit/host.toml", text)
    own = plan_of(machine, tmp_path)
    assert own["environment"]["NCCL_PROTO"] == "LL"
    assert own["cpuset"] == "0-63,128-191,64-127,192-230,232-255"
    assert own["plan_id"] != without["plan_id"]
    assert "NCCL_PROTO" not in without["environment"]
