"""The host's own file: the profile's facts with this machine's CPUs, valid, and left alone when it says the
same."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deploy_kit.configs.catalog import Catalog
from deploy_kit.configs.schema import Host
from deploy_kit.doctor.bundle import read_input
from deploy_kit.doctor.facts.machine import gather
from deploy_kit.errors import DeployKitError
from deploy_kit.plan.resolve import make_cpuset
from deploy_kit.provision.host_file import binding_obstacle, host_file, numa_nodes, to_toml

ROOT = Path(__file__).parents[3]
CAPTURE = ROOT / "tests/integration/provision/captured-gpu-host"
BASE = Catalog.find(ROOT / "configs").host("rtx-pro-6000-x8").model_dump(exclude_unset=True)


def test_nodes_come_from_the_machine_without_the_cpu_that_is_off_line() -> None:
    machine = gather(*read_input(str(CAPTURE)))
    nodes, why_not = numa_nodes(machine)
    assert why_not is None
    assert [(node.node, node.gpus, node.cpus) for node in nodes] == [
        (0, [0, 1, 2, 3], "0-63,128-191"),
        (1, [4, 5, 6, 7], "64-127,192-230,232-255"),
    ]
    assert binding_obstacle(machine, nodes) is None
    text = host_file(BASE, None, {"numa": [node.model_dump() for node in nodes]})
    host = Host.model_validate(tomllib.loads(text))
    assert make_cpuset(host) == "0-63,128-191,64-127,192-230,232-255"
    assert host.nccl == {"NCCL_P2P_LEVEL": "SYS"}


def test_without_a_driver_nothing_is_claimed() -> None:
    blocks, unknown = read_input(str(CAPTURE))
    machine = gather([block for block in blocks if "topo" not in block.title], unknown)
    nodes, why_not = numa_nodes(machine)
    assert nodes == []
    assert "after a reboot" in str(why_not)
    assert "numa" not in tomllib.loads(host_file(BASE, None, {"numa": None}))


def test_a_node_without_memory_forbids_binding() -> None:
    blocks, unknown = read_input(str(CAPTURE))
    from deploy_kit.doctor.blocks import Block

    bare = [Block(b.title, b.text.replace("node 1 size: 773000 MB", "node 1 size: 0 MB")) for b in blocks]
    machine = gather(bare, unknown)
    assert binding_obstacle(machine, numa_nodes(machine)[0]) == "node 1 has no memory"


def test_a_file_that_says_the_same_keeps_its_comments() -> None:
    text = host_file(BASE, None, {"models_directory": "/srv/models"}).replace("[nccl]", "# mine\n[nccl]")
    assert host_file(BASE, text, {"models_directory": "/srv/models"}) == text


def test_what_others_tuned_stays() -> None:
    text = host_file(BASE, None, {}).replace("mem-fraction-static = 0.9", "mem-fraction-static = 0.85")
    changed = tomllib.loads(host_file(BASE, text, {"flags": {"numa-node": [0, 0, 0, 0, 1, 1, 1, 1]}}))
    assert changed["flags"]["mem-fraction-static"] == 0.85
    assert changed["flags"]["numa-node"] == [0, 0, 0, 0, 1, 1, 1, 1]
    again = host_file(BASE, to_toml(changed), {"flags": {"numa-node": None}})
    assert "numa-node" not in tomllib.loads(again)["flags"]


@pytest.mark.parametrize(
    ("existing", "words"),
    [
        ("name = ", "is not TOML"),
        ('name = "x"', "no valid host file"),
        ("colour = 1\n", "no valid host file"),
    ],
)
def test_a_damaged_file_is_refused(existing: str, words: str) -> None:
    with pytest.raises(DeployKitError, match=words):
        host_file(BASE, existing, {})


VALUES = st.booleans() | st.integers(-(2**40), 2**40) | st.text(max_size=20) | st.floats(-1e9, 1e9)
KEYS = st.text(min_size=1, max_size=8)
TABLES = st.dictionaries(KEYS, VALUES | st.lists(VALUES, max_size=3), max_size=4)


@given(st.dictionaries(KEYS, VALUES | TABLES | st.lists(TABLES, min_size=1, max_size=2), max_size=5))
def test_what_is_written_is_what_is_read(table: dict[str, Any]) -> None:
    assert tomllib.loads(to_toml(table)) == table
