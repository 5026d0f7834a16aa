"""A large paste: the work grows with its size and no faster, and one odd line does not hold it up."""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any

import pytest

from deploy_kit.doctor.blocks import Block, split_blocks
from deploy_kit.doctor.bundle import without_secrets
from deploy_kit.doctor.examine import examine
from deploy_kit.doctor.facts.machine import gather
from deploy_kit.runtime.postmortem import HIDDEN, remove_secrets

DMESG = "[{n:5d}.123456] usb 1-{k}: new high-speed USB device number {n} using xhci_hcd\n"
XID = "[{n:5d}.123456] NVRM: Xid (PCI:0000:{k:02x}:00): {m}, pid={n}, name=python3, Ch 08\n"
AER = "[{n:5d}.123456] pcieport 0000:{k:02x}:01.1: AER: Corrected error received: 0000:{k:02x}:00.0\n"
SMI = (
    "GPU 00000000:{k:02x}:00.0\n    Product Name                      : NVIDIA RTX PRO 6000\n"
    "    PCI\n        GPU Link Info\n            Link Width\n                Max                   : 16x\n"
    "    FB Memory Usage\n        Total                     : 97887 MiB\n        Used      : {n} MiB\n"
)
TABLE = "{n}, NVIDIA RTX PRO 6000, 97887 MiB\n"
LSPCI = (
    "{k:02x}:00.0 VGA compatible controller: NVIDIA Corporation GB202GL (rev a1)\n"
    "\t\tLnkSta:\tSpeed 2.5GT/s (downgraded), Width x16 (ok)\n\t\tACSCtl:\tSrcValid+ ReqRedir- CmpltRedir-\n"
)
NCCL = "box:{n}:{n} [0] NCCL INFO Channel 00/04 : 0[0] -> 1[1] via P2P/CUMEM\n"
KINDS = {
    "dmesg": DMESG,
    "xid": XID,
    "aer": AER,
    "smi": SMI,
    "csv": TABLE,
    "lspci": LSPCI,
    "nccl": NCCL,
    "mixed": DMESG + XID + AER + SMI + LSPCI + NCCL,
    "commands": "$ dmesg\n" + DMESG + AER + XID + "$ nvidia-smi -q\n" + SMI + "$ lspci -vv\n" + LSPCI,
}


def make(kind: str, count: int) -> str:
    head = "index, name, memory.total [MiB]\n" if kind == "csv" else ""
    return head + "".join(KINDS[kind].format(n=n, k=n % 256, m=n % 200) for n in range(count))


def calls(text: str) -> int:
    """Count the calls, of Python's and of C's functions, that a report of the text takes."""
    count = 0

    def note(_frame: FrameType, event: str, _argument: Any) -> None:
        nonlocal count
        if event in ("call", "c_call"):
            count += 1

    sys.setprofile(note)
    try:
        examine(split_blocks(text))
    finally:
        sys.setprofile(None)
    return count


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_work_grows_with_the_text_and_no_faster(kind: str) -> None:
    examine(split_blocks(make(kind, 3)))  # imports and caches of patterns
    small, large = calls(make(kind, 100)), calls(make(kind, 400))
    assert large < 6 * small  # 16 times, were each part compared with each other


def test_parsers_look_at_their_own_lines_only() -> None:
    class Counting(list[str]):
        looked = 0

        def __iter__(self) -> Any:
            type(self).looked += len(self)
            return super().__iter__()

    block = Block("", make("dmesg", 400))
    vars(block)["lines"] = Counting(block.lines)
    gather([block])
    # Each whole pass: blank lines of the kernel's log, where devices may begin, one word each of the rest.
    assert Counting.looked <= 16 * 401


WORD = "a1B_" * 5000  # 20,000 characters


@pytest.mark.parametrize(
    "text",
    [
        "== " + " " * 19_000,
        "==" + " " * 19_000 + "x",
        "--- " + "- " * 9_000,
        "--- a" + "-" * 19_000 + "b",
        "--- a" + " " * 19_000 + "b",
        "NCCL_DEBUG=" + " " * 19_000 + "x" + " " * 19,
        "iommu=pt " + "a " * 9_000 + "?",
        "GPU 0" + " " * 19_000 + ":x",
        "    Key" + " " * 19_000 + ": x",
        "/" * 19_000 + " libnccl.so",
        WORD,
        WORD + ": manifest unknown",
        "a@b " + "c" * 19_000,
        "node 0 cpus:" + " 1" * 9_000 + " x",
        "0:" + " 10" * 6_000 + " x",
    ],
    ids=lambda text: repr(text[:14]),
)
def test_an_odd_line_is_only_a_line(text: str) -> None:
    # A pattern that tries every pair of places in such a line takes minutes for these, not milliseconds.
    examine(split_blocks("\n".join([text] * 8)))


@pytest.mark.parametrize(
    ("text", "hidden"),
    [
        ("postgres://user:geheim@db/x", "geheim"),
        ("Authorization: Bearer abcdefghijk", "abcdefghijk"),
        ("HF_TOKEN=hf_abcdefghijklmnop", "hf_abcdefghijklmnop"),
        ("x sk-0123456789abcdef0123 y", "sk-0123456789abcdef0123"),
        ("API_KEY: 'geheimnis'", "geheimnis"),
        ("aPi-KeY=geheimnis", "geheimnis"),
    ],
)
def test_secrets_are_found_inside_and_beside_long_words(text: str, hidden: str) -> None:
    for whole in (text, f"{WORD} {text} {WORD}", f"{text}\n{WORD * 50}", f"{WORD * 50}\n{text}"):
        cleaned = remove_secrets({"line": whole}, None)["line"]
        assert hidden not in cleaned
        assert HIDDEN in cleaned
    captured = without_secrets(f"{WORD} {text} {WORD}")
    assert hidden not in captured


def test_a_capture_of_blank_lines_and_dotted_words_is_quick_to_clean() -> None:
    text = "\n" * 200_000 + "a." * 100_000 + "x\n" + "Serial Number   : 123456\n"
    assert "123456" not in without_secrets(text)
    assert remove_secrets("://" * 20_000 + "a:" * 20_000, None)
