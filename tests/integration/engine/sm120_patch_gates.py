"""Prints, as JSON, what each gate of the fused all-reduce answers in a patched tree, for one faked GPU.

Run by test_sm120_patch.py: each line of its input is a question, TREE CAPABILITY LEVER (TREE: a folder with
the two patched files; CAPABILITY: 90, 100 or 120; LEVER: 1 or 0), each line of its output the answer. The
gates are fixed when the two files are loaded, so each question has a process of its own, forked when all else
is imported.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import sys
import types
from pathlib import Path
from typing import Any
from unittest import mock

FUSION = "sglang.srt.layers.flashinfer_comm_fusion"
ADD_NORM = "sglang.srt.layers.layer_boundary.residual.add_norm"
LEVER = "DEPLOY_KIT_SM120_FUSION"


def load(tree: Path, name: str) -> Any:
    """Load a patched file in the place of the installed module."""
    spec = importlib.util.spec_from_file_location(name, tree / (name.replace(".", "/") + ".py"))
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def answer(call: Any) -> str:
    try:
        return str(call())
    except Exception as error:  # noqa: BLE001  (the answer of a gate may be any refusal)
        return f"{type(error).__name__}"


class FakeDriver:
    """A CUDA driver STAND-IN for a card without multicast: the granularity call fails, as it does there."""

    class CUmemAllocationGranularity_flags:  # noqa: N801
        CU_MEM_ALLOC_GRANULARITY_RECOMMENDED = 1

    class CUmulticastGranularity_flags:  # noqa: N801
        CU_MULTICAST_GRANULARITY_RECOMMENDED = 1

    class CUresult:
        CUDA_SUCCESS = 0

    CUmulticastObjectProp = types.SimpleNamespace

    @staticmethod
    def cuMemGetAllocationGranularity(_prop: Any, _flags: Any) -> tuple[int, int]:
        return 0, 1 << 21

    @staticmethod
    def cuMulticastGetGranularity(_prop: Any, _flags: Any) -> tuple[int, int]:
        return 801, 0


def ask(tree: Path, capability: int) -> dict[str, str]:
    """Load the two files for a GPU of this capability and return each gate's answer."""
    from sglang.srt import runtime_context

    facts = {
        "is_cuda": True,
        "is_sm90": capability == 90,
        "is_sm100": capability == 100,
        "is_sm120": capability == 120,
        "is_blackwell": capability >= 100,
    }
    comm = types.SimpleNamespace(flashinfer_allreduce_fusion_backend="trtllm")
    with runtime_context.override_platform(**facts):
        fusion = load(tree, FUSION)
        # Only the two constants that need a real CUDA build; the capability gates are SGLang's own code.
        with (
            mock.patch("sglang.srt.utils.is_cuda", lambda: True),
            mock.patch("sglang.srt.utils.is_flashinfer_available", lambda: True),
        ):
            add_norm = load(tree, ADD_NORM)
        fusion._flashinfer_allreduce_unavailable = False
        add_norm.is_dp_attention_enabled = lambda: False
        for module in (fusion, add_norm):
            module.get_exec = lambda: types.SimpleNamespace(comm=comm)
        prop = types.SimpleNamespace(requestedHandleTypes=1)
        answers = {
            f"resolve {backend}{' multi-node' if nodes else ''}": answer(
                lambda backend=backend, nodes=nodes: fusion._resolve_backend(backend, nodes)
            )
            for backend in ("trtllm", "auto", "mnnvl", "cutedsl")
            for nodes in (False, True)
        }
        answers |= {
            f"applies at {n}": answer(lambda n=n: add_norm.flashinfer_ar_fusion_applies(n))
            for n in (0, 1, 4, 2048, 2049)
        }
        import torch

        for ranks in (2, 4, 8):
            answers[f"workspace of {ranks} ranks without multicast"] = answer(
                lambda ranks=ranks: len(
                    fusion._flashinfer_trtllm_workspace_allocation_sizes(
                        FakeDriver, prop, ranks, 2048, 7168, torch.bfloat16
                    )
                )
            )
    return answers


def answer_in_a_process(tree: Path, capability: int, lever: bool) -> None:
    """Fork; the child asks, and prints one line."""
    child = os.fork()
    if child:
        os.waitpid(child, 0)
        return
    if lever:
        os.environ[LEVER] = "1"
    try:
        print(json.dumps(ask(tree, capability)), flush=True)
    except BaseException as error:  # noqa: BLE001  (a tree that cannot be loaded is an answer)
        print(json.dumps({"import": f"{type(error).__name__}: {error}"}), flush=True)
    os._exit(0)


def main() -> None:
    # Everything the two files import is loaded as the CPU machine it is; only they see the faked GPU.
    importlib.import_module(ADD_NORM)
    os.environ.pop(LEVER, None)
    for line in sys.stdin:
        tree, capability, lever = line.rstrip("\n").rsplit(" ", 2)
        answer_in_a_process(Path(tree), int(capability), lever == "1")


main()
