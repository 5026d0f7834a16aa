"""A lever that the engine leaves off is found in its log, however the log arrives."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deploy_kit.configs.catalog import Catalog
from deploy_kit.configs.schema import Lever
from deploy_kit.runtime.levers_off import LeversOff, texts_of

ROOT = Path(__file__).parents[3]
LINE = (
    "[2026-11-30 14:01:02 TP0] TorchSymmMemCommunicator: torch symmetric memory multicast operations are not "
    "supported."
)


@given(st.lists(st.integers(min_value=1, max_value=40), max_size=20), st.text(max_size=200))
def test_it_is_found_in_whatever_pieces_the_log_comes(cuts: list[int], before: str) -> None:
    text = f"{before}\n{LINE}\nlater\n".encode()
    off = LeversOff(
        {"torch-symm-mem": ["multicast operations are not supported"], "other": ["nothing of it"]}
    )
    said: list[str] = []
    for cut in cuts:
        said += off.feed(text[:cut])
        text = text[cut:]
    said += off.feed(text)
    assert said == ["torch-symm-mem"]
    assert off.found == {"torch-symm-mem": LINE}


def test_an_endless_line_is_not_kept_whole() -> None:
    off = LeversOff({"lever": ["is disabled here"]})
    for _ in range(100):
        off.feed(b"x" * 65536)
    assert len(off._rest) <= 8192
    assert off.feed(b" is disabled here\n") == ["lever"]
    assert len(off.found["lever"]) <= 300


def test_without_texts_nothing_is_read() -> None:
    off = LeversOff({"lever": []})
    assert off.feed(b"lever is disabled\n") == []
    assert off._rest == b""


def test_every_lever_of_an_all_reduce_says_how_sglang_leaves_it_off() -> None:
    catalog = Catalog.find(ROOT / "configs")
    texts = texts_of(catalog, catalog.names(Lever))
    flags = {name for name in texts if re.search(r"allreduce|symm|mscclpp|ipc|fusion", name)}
    assert {name for name, said in texts.items() if said} == flags


@pytest.mark.parametrize(
    ("name", "line"),
    [
        (
            "custom-allreduce",
            "Setup Custom allreduce failed with invalid argument. To silence this warning, specify",
        ),
        (
            "custom-allreduce",
            "CustomAllReduceV2 is disabled because your platform lacks GPU P2P capability or P2P",
        ),
        (
            "torch-symm-mem",
            "TorchSymmMemCommunicator: World size 3 not supported, communicator is not available.",
        ),
        ("pcie-ipc", "FlashInfer PCIe-IPC workspace (max_numel=458752) failed: no; reductions stay on NCCL"),
        ("fusion", "FlashInfer workspace preflight probe failed (x). Skipping allreduce fusion."),
    ],
)
def test_the_lines_of_real_engines_are_known(name: str, line: str) -> None:
    off = LeversOff(texts_of(Catalog.find(ROOT / "configs"), [name]))
    before = "[2026-11-30 14:01:02 TP1] " + "x" * 400 + " "
    assert off.feed(f"{before}{line}\n".encode()) == [name]
    assert line[:40] in off.found[name]


@pytest.mark.parametrize("name", ["torch-symm-mem", "custom-allreduce", "pcie-ipc", "mscclpp", "fusion"])
def test_a_healthy_start_says_none_of_it(name: str) -> None:
    catalog = Catalog.find(ROOT / "configs")
    off = LeversOff(texts_of(catalog, [name]))
    off.feed(b"FlashInfer AllReduce Fusion enabled and workspace initialized\n")
    off.feed(b"FlashInfer PCIe-IPC all-reduce enabled (world=2)\nThe server is fired up and ready to roll!\n")
    assert off.found == {}
