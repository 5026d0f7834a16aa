"""Text as people paste it, without what carried it: terminal colours, quote marks, a file's encoding."""

from __future__ import annotations

import re

ESCAPES = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b[@-Z\\^_]")
_QUOTE = re.compile(r"(?:> ?)+")


def plain(text: str) -> str:
    """Given text that was read as UTF-8, return it without terminal escapes, without the NULs and marks that
    UTF-16 leaves (what PowerShell writes), and unquoted (`unquoted`)."""
    if "\0" in text:
        text = text.replace("\0", "").removeprefix("\ufffd\ufffd")
    text = text.removeprefix("\ufeff")
    if "\x1b" in text:
        text = ESCAPES.sub("", text)
    return unquoted(text)


def unquoted(text: str) -> str:
    """Return the text without the `> ` of a quote, when each of its lines that are not empty has it."""
    if not text.lstrip("\n").startswith(">"):
        return text
    lines = text.split("\n")
    marks = [_QUOTE.match(line) for line in lines if line.strip()]
    depths = [mark.group().count(">") for mark in marks if mark is not None]
    if len(depths) < len(marks):
        return text
    mark = re.compile(rf"(?:> ?){{{min(depths)}}}")
    return "\n".join(mark.sub("", line, count=1) for line in lines)
