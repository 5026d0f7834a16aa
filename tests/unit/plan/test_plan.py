"""Plans: a golden file per profile, determinism, and every refusal that saves a load."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deploy_kit.configs.catalog import Catalog
from deploy_kit.configs.schema import Host, Profile
from deploy_kit.errors import DeployKitError
from deploy_kit.plan.describe import describe
from deploy_kit.plan.flags import make_flags, make_numa_flag
from deploy_kit.plan.resolve import resolve

CONFIGS = Path(__file__).parents[3] / "configs"
GOLDEN = Path(__file__).parent / "golden"
CATALOG = Catalog(CONFIGS)
PROFILES = CATALOG.names(Profile)


@pytest.mark.parametrize("host", ["rtx-pro-6000-x8", "rehearsal"])
@pytest.mark.parametrize("profile", PROFILES)
def test_golden(profile: str, host: str) -> None:
    """Rewrite the files with UPDATE_GOLDEN=1 and read the difference before committing it."""
    path = GOLDEN / f"{host}--{profile}.json"
    text = json.dumps(resolve(CATALOG, profile, host=host).as_dict(), indent=2) + "\n"
    if os.environ.get("UPDATE_GOLDEN"):
        path.write_text(text)
    assert path.read_text() == text


def test_no_golden_file_without_its_profile() -> None:
    assert {path.stem.split("--")[1] for path in GOLDEN.glob("*.json")} == set(PROFILES)


@pytest.mark.parametrize("profile", PROFILES)
def test_same_inputs_same_id(profile: str) -> None:
    assert resolve(CATALOG, profile).plan_id == resolve(CATALOG, profile).plan_id


def test_every_part_of_the_content_changes_the_id() -> None:
    plan = resolve(CATALOG, "eagle3")
    others = [
        resolve(CATALOG, "baseline"),
        resolve(CATALOG, "eagle3", stack="rollback"),
        resolve(CATALOG, "eagle3", levers=["nccl-ll"]),
        resolve(CATALOG, "eagle3", drafter="eagle3-k2"),
        replace(plan, image="other"),
        replace(plan, cpuset="0"),
    ]
    assert len({plan.plan_id, *(other.plan_id for other in others)}) == len(others) + 1


def test_where_an_engine_listens_is_not_part_of_the_id() -> None:
    """In its container an engine listens on all addresses, a plan made outside says loopback: one plan."""
    plan = resolve(CATALOG, "eagle3")
    elsewhere = resolve(CATALOG, "eagle3", address="0.0.0.0", port=40000)
    assert plan.argv != elsewhere.argv
    assert plan.plan_id == elsewhere.plan_id


def test_the_order_of_levers_does_not_matter_for_argv() -> None:
    one = resolve(CATALOG, "eagle3", levers=["nccl-ll", "expert-parallel"])
    two = resolve(CATALOG, "eagle3", levers=["expert-parallel", "nccl-ll"])
    assert (one.argv, one.environment) == (two.argv, two.environment)


def test_the_reference_host_pins_cpus_and_ranks() -> None:
    plan = resolve(CATALOG, "baseline", levers=["numa-binding"])
    assert plan.cpuset == "0-63,128-191,64-127,192-255"
    at = plan.argv.index("--numa-node")
    assert plan.argv[at + 1 : at + 9] == ("0", "0", "0", "0", "1", "1", "1", "1")


def test_only_our_plugins_are_loaded() -> None:
    assert dict(resolve(CATALOG, "eagle3").environment)["SGLANG_PLUGINS"] == "deploy_kit_telemetry"


def refused(**arguments: Any) -> DeployKitError:
    with pytest.raises(DeployKitError) as caught:
        resolve(CATALOG, arguments.pop("profile", "eagle3"), **arguments)
    return caught.value


@pytest.mark.parametrize(
    ("arguments", "key", "words"),
    [
        ({"levers": ["sm120-fusion"], "stack": "rollback"}, "stack rollback: sglang", "newer SGLang"),
        ({"levers": ["pcie-ipc"], "stack": "rollback"}, "stack rollback: sglang", "0.5.22"),
        ({"levers": ["fusion"]}, "host.capability", "gated upstream"),
        ({"levers": ["torch-symm-mem"]}, "host.capability", "12.0"),
        ({"levers": ["custom-allreduce"]}, "host.nvlink", "NVLink"),
        ({"levers": ["mscclpp"]}, "stack.lever_packages", "mscclpp"),
        ({"levers": ["nccl-ll"], "host": "rehearsal"}, "host.accelerator", "cuda"),
        ({"levers": ["nope"]}, None, "no such lever"),
        ({"stack": "curent"}, None, "current"),
        ({"model": "kimi-k25"}, None, "kimi-k2.5"),
        ({"host": "rtx"}, None, "rtx-pro-6000-x8"),
        ({"host": "rehearsal", "model": "kimi-k2.5"}, "stack, model, host", "do not mix"),
        ({"stack": "rehearsal"}, "stack, model, host", "do not mix"),
        ({"drafter": "eagle"}, "drafters", "eagle3"),
        ({"profile": "baseline", "drafter": "eagle3"}, "--drafter", "takes no drafter"),
        ({"levers": ["verify-graph", "verify-graph-2"]}, None, "verify-graph"),
    ],
)
def test_refusals(arguments: dict[str, Any], key: str | None, words: str) -> None:
    error = refused(**arguments)
    assert words in str(error)
    if key is not None:
        assert error.key == key


@pytest.fixture
def edited(tmp_path: Path) -> Path:
    shutil.copytree(CONFIGS, tmp_path / "configs")
    return tmp_path / "configs"


@pytest.mark.parametrize(
    ("old", "new", "key"),
    [
        ("tensor_parallel = 8", "tensor_parallel = 6", "tensor_parallel"),
        ("tensor_parallel = 8", "tensor_parallel = 16", "tensor_parallel"),
        ('attention-backend = "triton"', 'attention-backend = "trtllm_mla"', "attention-backend"),
        ('attention-backend = "triton"', 'attention-backend = "fa3"', "attention-backend"),
        ("mem-fraction-static = 0.9", 'moe-runner-backend = "flashinfer_trtllm"', "moe-runner-backend"),
        ("mem-fraction-static = 0.9", "ep-size = 3", "ep-size"),
        ("mem-fraction-static = 0.9", "mem-fraction-static = 1.9", "mem-fraction-static"),
        ("mem-fraction-static = 0.9", "mem-fraction-static = 90", "mem-fraction-static"),
        ("mem-fraction-static = 0.9", "mem-fraction-static = 0", "mem-fraction-static"),
        ("mem-fraction-static = 0.9", 'moe-a2a-backend = "deepep"', "moe-a2a-backend"),
        ("mem-fraction-static = 0.9", 'kv-cache-dtype = "fp4_e2m1"', "kv-cache-dtype"),
        ('NCCL_P2P_LEVEL = "SYS"', 'NCCL_ALGO = "Tree"', "NCCL_ALGO"),
        ("mem-fraction-static = 0.9", "port = 4000", "flags.port"),
        ("mem-fraction-static = 0.9", "tp-size = 4", "flags.tp-size"),
        ("mem-fraction-static = 0.9", 'api-key = "never-in-a-plan"', "flags.api-key"),
        ('models_directory = "/', 'models_directory = "', "models_directory"),
    ],
)
def test_what_sglang_would_find_out_only_after_the_load(edited: Path, old: str, new: str, key: str) -> None:
    path = edited / "hosts/rtx-pro-6000-x8.toml"
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))
    with pytest.raises(DeployKitError) as caught:
        resolve(Catalog(edited), "eagle3")
    assert caught.value.key == key
    assert "never-in-a-plan" not in str(caught.value)


def test_levers_that_set_the_same_thing_or_exclude_each_other(edited: Path) -> None:
    text = (edited / "levers/nccl-ll.toml").read_text()
    (edited / "levers/nccl-simple.toml").write_text(
        text.replace("nccl-ll", "nccl-simple").replace('"LL"', '"Simple"')
    )
    with pytest.raises(DeployKitError, match="both set NCCL_PROTO"):
        resolve(Catalog(edited), "eagle3", levers=["nccl-ll", "nccl-simple"])
    text = (edited / "levers/nccl-two-channels.toml").read_text()
    (edited / "levers/nccl-two-channels.toml").write_text('excludes = ["nccl-ll"]\n' + text)
    with pytest.raises(DeployKitError, match="alternatives"):
        resolve(Catalog(edited), "eagle3", levers=["nccl-ll", "nccl-two-channels"])


def test_a_host_file_is_taken_by_its_path(edited: Path) -> None:
    by_path = resolve(CATALOG, "eagle3", host=str(edited / "hosts/rtx-pro-6000-x8.toml"))
    assert by_path.plan_id == resolve(CATALOG, "eagle3").plan_id


@given(
    st.dictionaries(
        st.from_regex(r"[a-z][a-z0-9-]{0,9}", fullmatch=True), st.one_of(st.booleans(), st.integers())
    )
)
def test_flags_are_sorted_and_switches_have_no_value(flags: dict[str, Any]) -> None:
    words = make_flags(flags)
    names = [word for word in words if word.startswith("--")]
    assert names == sorted(names)
    for name, value in flags.items():
        assert (f"--{name}" in words) == (value is not False)
    assert not {"True", "False"} & set(words)


def test_numa_flag_follows_the_gpus() -> None:
    host = CATALOG.load(Host, "rtx-pro-6000-x8")
    assert make_numa_flag(host) == [0, 0, 0, 0, 1, 1, 1, 1]


def test_description_says_rehearsal_loudly_and_quotes_the_command() -> None:
    text = describe(resolve(CATALOG, "eagle3", host="rehearsal"))
    assert "REHEARSAL" in text.splitlines()[0]
    assert "REHEARSAL" not in describe(resolve(CATALOG, "eagle3"))
