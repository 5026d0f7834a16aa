"""What each lever's file says of SGLang, held against the installed SGLang's own code: where a lever applies,
and where it would do nothing without a word. Flags and variables: test_flags.py; the fusion's gates:
test_sm120_patch.py."""

from __future__ import annotations

import ast
import functools
import types
from pathlib import Path
from typing import Any

import pytest

from deploy_kit.configs.catalog import Catalog
from deploy_kit.configs.schema import Lever, Stack
from deploy_kit.plan.resolve import resolve
from deploy_kit.stacks.locks import read_lock

ROOT = Path(__file__).parents[3]
CATALOG = Catalog(ROOT / "configs")


def lever(name: str) -> Lever:
    return CATALOG.load(Lever, name)


def source(name: str) -> str:
    """A file of the installed SGLang, read: importing some of them takes long."""
    import sglang

    return (Path(sglang.__file__).parent / name).read_text()


@functools.cache
def texts_of_python(folder: str) -> list[ast.Constant]:
    """Every literal text in a folder of the installed SGLang, as Python joins it."""
    import sglang

    return [
        node
        for path in sorted((Path(sglang.__file__).parent / folder).glob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]


def majors(one: Lever) -> set[int]:
    return {int(capability.partition(".")[0]) for capability in one.needs.capabilities}


@pytest.mark.parametrize("name", CATALOG.names(Lever))
def test_every_lever_says_what_it_is_for(name: str) -> None:
    one = lever(name)
    assert one.flags or one.environment
    assert all((one.expected_effect, one.acceptance, one.source))
    refused = bool(one.needs.capabilities and "12.0" not in one.needs.capabilities) or bool(one.needs.nvlink)
    # sm120-fusion is what opens upstream's gate, so it applies to SM120 all the same.
    assert (one.status_on_sm120 == "gated upstream") == (refused or one.needs.patch)
    assert (one.status_on_sm120 == "needs package") == (one.needs.package is not None)


@pytest.mark.parametrize("name", [n for n in CATALOG.names(Lever) if lever(n).off_when_logged])
def test_the_lines_by_which_sglang_leaves_a_lever_off_are_its_own(name: str) -> None:
    logged = [
        constant.value
        for path in ("srt/distributed", "srt/distributed/device_communicators", "srt/layers")
        for constant in texts_of_python(path)
    ]
    for text in lever(name).off_when_logged:
        assert any(text in one for one in logged), text


def test_pcie_ipc_applies_to_the_tensor_parallel_group_only(monkeypatch: pytest.MonkeyPatch) -> None:
    from sglang.srt.distributed.device_communicators import pcie_ipc_ar as code

    one = lever("pcie-ipc")
    assert tuple(one.needs.tensor_parallel) == code._SUPPORTED_WORLD_SIZES

    def eligible(group: str | None, ranks: int = 8, deterministic: bool = False) -> bool:
        return bool(code.eligible_group(group_name=group, world_size=ranks, deterministic=deterministic))

    assert not eligible("tp")
    for variable, value in one.environment.items():
        monkeypatch.setenv(variable, value)
    assert eligible("tp")
    for group in ("attention_tp", "moe_tp", "pp", None):
        assert not eligible(group)
    assert not eligible("tp", ranks=1)
    assert not eligible("tp", deterministic=True)


def test_torch_symmetric_memory_knows_no_sm120_and_needs_multicast() -> None:
    from sglang.srt.distributed.device_communicators import all_reduce_utils

    one = lever("torch-symm-mem")
    sizes = all_reduce_utils.TORCH_SYMM_MEM_ALL_REDUCE_MAX_SIZES
    assert set(sizes) == majors(one)
    assert 12 not in sizes
    assert {ranks for table in sizes.values() for ranks in table} == set(one.needs.tensor_parallel)
    # Without multicast the communicator stays off: the lever needs NVLink.
    assert "multicast_ptr == 0" in source("srt/distributed/device_communicators/torch_symm_mem.py")
    assert one.needs.nvlink is True


@pytest.mark.parametrize(("ranks", "nvlink", "used"), [(8, False, False), (4, False, False), (8, True, True)])
def test_custom_all_reduce_is_off_on_more_than_two_pcie_gpus(ranks: int, nvlink: bool, used: bool) -> None:
    import torch
    from sglang.srt.distributed.device_communicators.custom_all_reduce import CustomAllreduce

    communicator: Any = types.SimpleNamespace(
        disabled=False, world_size=ranks, full_nvlink=nvlink, max_size=1 << 23
    )
    decode = torch.zeros((4, 7168), dtype=torch.bfloat16)
    assert CustomAllreduce.should_custom_ar(communicator, decode) is used
    assert lever("custom-allreduce").needs.nvlink is True


def test_custom_all_reduce_of_both_kinds_asks_for_nvlink() -> None:
    """Both take their answer from one function, which has no way around its refusal."""
    folder = "srt/distributed/device_communicators"
    refusal = source(f"{folder}/custom_all_reduce_utils.py")
    assert "if world_size > 2 and not full_nvlink:" in refusal
    for name in ("custom_all_reduce", "custom_all_reduce_v2"):
        assert "= can_use_custom_all_reduce_with_nvlink(" in source(f"{folder}/{name}.py")


def test_mscclpp_needs_a_package_that_no_stack_holds(caplog: pytest.LogCaptureFixture) -> None:
    """SGLang warns and serves on without it, so the plan must refuse the lever."""
    from sglang.srt.distributed.device_communicators import pymscclpp

    one = lever("mscclpp")
    assert set(one.needs.tensor_parallel) <= set(pymscclpp._NATIVE_SUPPORTED_WORLD_SIZES)
    package = str(one.needs.package)
    for name in ("current", "rollback"):
        stack = CATALOG.load(Stack, name)
        assert (package in read_lock(ROOT / stack.requirements)) == (package in stack.lever_packages)
    with caplog.at_level("WARNING"):
        no_group: Any = None
        communicator: Any = pymscclpp.PyMscclppCommunicator(group=no_group, device="cuda:0")
    assert communicator.disabled
    assert "unavailable" in caplog.text


def test_expert_parallelism_takes_all_ranks_without_an_all_to_all() -> None:
    """`none` is a choice of this SGLang, and the experts' share times one is the ranks' number."""
    import argparse

    from sglang.srt.server_args import ServerArgs

    one = lever("expert-parallel")
    parser = argparse.ArgumentParser(allow_abbrev=False)
    ServerArgs.add_cli_args(parser)
    choices = next(a.choices for a in parser._actions if "--moe-a2a-backend" in a.option_strings)
    assert one.flags["moe-a2a-backend"] in (choices or ())
    assert one.needs.tensor_parallel == [one.flags["ep-size"]]


def test_a_verify_runs_in_the_decode_graph_up_to_the_lever_s_batch() -> None:
    runner = source("srt/model_executor/runner/decode_cuda_graph_runner.py")
    assert "self.capture_forward_mode = ForwardMode.TARGET_VERIFY" in runner
    one = lever("verify-graph")
    plan = resolve(CATALOG, "eagle3", levers=["verify-graph"])
    at = plan.argv.index("--cuda-graph-max-bs-decode")
    assert plan.argv[at + 1] == str(one.flags["cuda-graph-max-bs-decode"])


def test_each_rank_is_bound_to_its_gpu_s_node() -> None:
    from sglang.srt.utils.numa_utils import get_numa_node_if_available

    plan = resolve(CATALOG, "baseline", levers=["numa-binding"])
    at = plan.argv.index("--numa-node") + 1
    nodes = [int(word) for word in plan.argv[at : at + 8]]
    arguments: Any = types.SimpleNamespace(numa_node=nodes)
    assert [get_numa_node_if_available(arguments, gpu) for gpu in range(8)] == [0] * 4 + [1] * 4


def test_nccl_levers_set_nccl_s_own_variables_only() -> None:
    """That this NCCL reads them is asserted where its library is: `deploy-kit stack assert`."""
    for name in ("nccl-ll", "nccl-tree", "nccl-two-channels"):
        one = lever(name)
        assert not one.flags
        assert all(variable.startswith("NCCL_") for variable in one.environment)
    together = {variable for name in CATALOG.names(Lever) for variable in lever(name).environment}
    assert {"NCCL_ALGO", "NCCL_PROTO", "NCCL_MAX_NCHANNELS", "NCCL_BUFFSIZE"} <= together
