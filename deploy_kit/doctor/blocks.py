"""Cutting a text into the outputs of single commands, as people paste them."""

from __future__ import annotations

import re
from dataclasses import dataclass

_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b[@-Z\\^_]")
_SEPARATORS = (
    re.compile(r"^-{3,}\s+(?P<title>\S.*?)\s*-*$"),  # --- dmesg
    re.compile(r"^[#$]\s+(?P<title>\S.*)$"),  # # dmesg, $ dmesg
    re.compile(r"^\[?[\w.-]+@[\w.-]+[:\s][^#$|]{0,80}[#$]\s+(?P<title>\S.*)$"),  # root@box1:~# dmesg
    re.compile(r"^={2,}>?\s*(?P<title>[^=<>]+?)\s*<?={2,}$"),  # ==> file <==, === dmesg ===
)
_FENCE = re.compile(r"^\s*```.*$")
_MAX_LINE = 20_000


@dataclass(frozen=True)
class Block:
    """The output of one command: its title as far as one was given, and its lines."""

    title: str
    text: str

    @property
    def lines(self) -> list[str]:
        """Return the lines of the text."""
        return self.text.split("\n")

    @property
    def in_container(self) -> bool:
        """Whether the title says that the command ran inside a container."""
        return (
            re.search(r"\b(?:docker|podman|nerdctl)\s+(?:compose\s+)?(?:exec|run)\b|kubectl", self.title)
            is not None
        )


def clean(text: str) -> str:
    """Return the text without terminal escapes and other control characters, with one kind of line end."""
    text = _ESCAPES.sub("", text).replace("\r\n", "\n").replace("\r", "\n").replace("\u00a0", " ")
    text = re.sub(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\x85\u2028\u2029]", "", text)
    return "\n".join(line[:_MAX_LINE] for line in text.split("\n"))


def split_blocks(text: str, *, title: str = "") -> list[Block]:
    """Given one text with the outputs of one or several commands, return them apart, in order.

    A block begins at a line such as `--- nvidia-smi -q`, `# dmesg`, `$ lscpu`, `root@box:~# lscpu` or
    `==> file <==`. A text without such lines is one block; parsers find what is theirs by its shape.
    """
    blocks: list[Block] = []
    lines: list[str] = []
    for line in clean(text).split("\n"):
        found = next((match for rule in _SEPARATORS if (match := rule.match(line))), None)
        if found is not None:
            _close(blocks, title, lines)
            title, lines = found["title"], []
        elif not _FENCE.match(line):
            lines.append(line)
    _close(blocks, title, lines)
    return blocks


def _close(blocks: list[Block], title: str, lines: list[str]) -> None:
    text = "\n".join(lines)
    if text.strip() or title:
        blocks.append(Block(title, text))
