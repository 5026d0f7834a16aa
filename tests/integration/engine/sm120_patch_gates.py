"""Prints, as JSON, what each gate of the fused all-reduce answers in a patched tree, for one faked GPU.

Run by test_sm120_patch.py as a process of its own: the gates are fixed when SGLang's modules are imported.
Usage: sm120_patch_gates.py TREE CAPABILITY   (TREE: the two patched files; CAPABILITY: 90, 100 or 120)
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import sys
import types
from pathlib import Path
from typing import Any
from unittest import mock

TREE, CAPABILITY = Path(sys.argv[1]), int(sys.argv[2])
FUSION = "sglang.srt.layers.flashinfer_comm_fusion"
ADD_NORM = "sglang.srt.layers.layer_boundary.residual.add_norm"


def load(name: str) -> Any:
    """Load a patched file in the place of the installed module."""
    spec = importlib.util.spec_from_file_location(name, TREE / (name.replace(".", "/") + ".py"))
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


def main() -> None:
    from sglang.srt import runtime_context

    # Everything these two files import is loaded as the CPU machine it is; only they see the faked GPU.
    importlib.import_module(ADD_NORM)
    facts = {
        "is_cuda": True,
        "is_sm90": CAPABILITY == 90,
        "is_sm100": CAPABILITY == 100,
        "is_sm120": CAPABILITY == 120,
        "is_blackwell": CAPABILITY >= 100,
    }
    comm = types.SimpleNamespace(flashinfer_allreduce_fusion_backend="trtllm")
    with runtime_context.override_platform(**facts):
        fusion = load(FUSION)
        # Only the two constants that need a real CUDA build; the capability gates are SGLang's own code.
        with (
            mock.patch("sglang.srt.utils.is_cuda", lambda: True),
            mock.patch("sglang.srt.utils.is_flashinfer_available", lambda: True),
        ):
            add_norm = load(ADD_NORM)
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
    json.dump(answers, sys.stdout)


main()
