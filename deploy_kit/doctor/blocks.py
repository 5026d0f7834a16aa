"""Cutting a text into the outputs of single commands, as people paste them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from deploy_kit.pasted import ESCAPES, unquoted

_CONTROLS = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\x85\u2028\u2029]")
_COMMENT_OR_PROMPT = re.compile(r"(?:#{1,6}|\$)\s+(?P<title>\S.*)$")  # # dmesg, $ dmesg, ### dmesg
# nccl-tests print their results as comments: they belong to the output.
_OF_A_TEST = re.compile(
    r"#(?:\s{2,}|\s(?:nThread|nccl-tests|Using devices|Out of bounds|Avg bus|Collective test)\b|\s*$)"
)
# root@box1:~# dmesg, (venv) [10:01:12] root@box1 ~ % dmesg
_LONG_PROMPT = re.compile(
    r"(?:\([^()\s]{1,40}\)\s*)*(?:\[[\d:. -]{4,24}\]\s*)?"
    r"\[?[\w.-]+@(?P<machine>[\w.-]+)[:\s][^#$%>|]{0,80}[#$%>]\s+(?P<title>\S.*)$"
)
# What stands around a command in Markdown, in traces (`set -x`) and in prompts without a machine's name.
_AROUND = re.compile(r"(?:[*`+>#$%~❯➜»└─\s]|\([^()\s]{1,40}\)|(?:ba|z)?sh-[\d.]+[#$])*")  # noqa: RUF001
# A line that is a known command and nothing else needs no prompt.
_COMMAND = re.compile(
    r"(?:sudo\s+(?:-\w+\s+)*)?(?:"
    r"nvidia-smi(?:\s+(?:-|topo\b|nvlink\b).*)?|lspci(?:\s+[-|].*)?|dmesg(?:\s+[-|].*)?|journalctl\s+-.*"
    r"|lscpu(?:\s+[-|].*)?|numactl\s+-.*|cat\s+/.*|df(?:\s+[-/].*)?|free(?:\s+-\w+)?|nvidia-ctk\s+\w.*"
    r"|(?:docker|podman)\s+(?:info|exec|run|compose|inspect|version)\b.*|kubectl\s+\w.*|ulimit\s+-\w+"
    r"|sysctl\s+\S.*|cpupower\s+\S.*|lsmod(?:\s+\|.*)?|mod(?:info|probe)\s+\S.*|(?:print)?env(?:\s+\|.*)?"
    r"|(?:uv\s+)?pip3?\s+(?:list|freeze|show)\b.*|conda\s+list\b.*|ldconfig\s+-.*|find\s+/.*|dkms\s+status"
    r"|dpkg\s+-\w.*|mount(?:\s+\|.*)?|systemctl\s+\w.*)"
)
_DASHES = re.compile(r"-{3,}\s+(?=\S)")
_IN_CONTAINER = re.compile(
    r"\b(?:docker|podman|nerdctl|crictl|lxc)\s+(?:compose\s+|container\s+)?(?:exec|run)\b|\bkubectl\b"
    r"|\b(?:apptainer|singularity)\s+(?:exec|run|shell)\b|(?<![\w-])(?:containers?|pod)(?![\w-])",
    re.IGNORECASE,
)
_ON_HOST = re.compile(r"(?<![\w-])(?:host|bare[ -]metal)(?![\w-])", re.IGNORECASE)
# Commands that are run on a host, hardly ever in a container.
_OF_A_HOST = re.compile(
    r"(?:^|\s|\|)(?:sudo|docker|podman|dmesg|journalctl|systemctl|modprobe|rmmod|dkms|mokutil)\b"
)
# Docker names a container's machine after the beginning of its id.
_CONTAINER_ID = re.compile(r"[0-9a-f]{12}")
_MAX_LINE = 20_000
_LONGEST_COMMAND = 400


@dataclass(frozen=True)
class Block:
    """The output of one command: its title as far as one was given, its lines, and the machine's name that
    the prompt showed."""

    title: str
    text: str
    machine: str = ""

    @cached_property
    def lines(self) -> list[str]:
        """Return the lines of the text."""
        return self.text.split("\n")

    @cached_property
    def lower_text(self) -> str:
        """Return the text in lower case, for words that are looked for in any case."""
        return self.text.lower()

    @property
    def in_container(self) -> bool:
        """Whether the title or the prompt says that the command ran inside a container."""
        return (
            _IN_CONTAINER.search(self.title) is not None or _CONTAINER_ID.fullmatch(self.machine) is not None
        )

    @property
    def on_host(self) -> bool:
        """Whether the title says that the command ran on the host itself."""
        return not self.in_container and _ON_HOST.search(self.title) is not None

    @property
    def shell_of_host(self) -> bool:
        """Whether the command is one that is run on a host: then its shell is the host's."""
        return _CONTAINER_ID.fullmatch(self.machine) is None and _OF_A_HOST.search(self.title) is not None

    def has(self, *words: str) -> bool:
        """Whether one of the words stands in the text."""
        return any(word in self.text for word in words)

    def lines_with(self, *words: str) -> list[str]:
        """Given words, return the lines that hold at least one of them, in order.

        This is what makes a large text quick to read: a parser tries its patterns on these lines only.
        """
        return [self.lines[number] for number in self.numbers_with(*words)]

    def numbers_with(self, *words: str) -> list[int]:
        """Given words, return the places of the lines that hold at least one of them, in order."""
        return _numbers_with(self.lines, [word for word in words if word in self.text])

    def lines_with_in_any_case(self, *words: str) -> list[str]:
        """Given words in lower case, return the lines that hold at least one in any case, in order."""
        present = [word for word in words if word in self.lower_text]
        if not present:
            return []
        small_lines = self.lower_text.split("\n")
        return [self.lines[number] for number in _numbers_with(small_lines, present)]


def lines_with(lines: Sequence[str], words: Iterable[str]) -> list[str]:
    """Given lines and words, return the lines that hold at least one of the words, in order."""
    return [lines[number] for number in _numbers_with(lines, words)]


def _numbers_with(lines: Sequence[str], words: Iterable[str]) -> list[int]:
    found: set[int] = set()
    for word in words:
        # One word at a time: that loop runs in C for most of its time.
        found.update([number for number, line in enumerate(lines) if word in line])
    return sorted(found)


def clean(text: str) -> str:
    """Return the text without terminal escapes and other control characters, with one kind of line end."""
    return "\n".join(_clean_lines(text))


def split_blocks(text: str, *, title: str = "") -> list[Block]:
    """Given one text with the outputs of one or several commands, return them apart, in order.

    A block begins at a line such as `--- nvidia-smi -q`, `# dmesg`, `$ lscpu`, `root@box:~# lscpu` or
    `==> file <==`. A text without such lines is one block; parsers find what is theirs by its shape.
    """
    blocks: list[Block] = []
    lines: list[str] = []
    machine = ""
    for line in _clean_lines(text):
        if line[:1] in _FIRST or "@" in line or line.startswith(_FIRST_WORDS):
            found = _title(line)
            if found is not None:
                _close(blocks, title, lines, machine)
                (title, machine), lines = found, []
                continue
        if "```" in line and line.lstrip().startswith("```"):
            continue
        lines.append(line)
    _close(blocks, title, lines, machine)
    return blocks


_FIRST = frozenset("-#$=(*`+>~❯➜»└%")  # noqa: RUF001
_FIRST_WORDS = (
    "bash-", "sh-", "zsh-", "sudo ", "nvidia-", "lspci", "dmesg", "journalctl ", "lscpu", "numactl ", "cat /",
    "df", "free", "docker ", "podman ", "kubectl ", "ulimit ", "sysctl ", "cpupower ", "lsmod", "mod", "env",
    "printenv", "uv ", "pip", "conda ", "ldconfig ", "find /", "dkms ", "dpkg ", "mount", "systemctl ",
)  # fmt: skip


def _clean_lines(text: str) -> list[str]:
    if "\x1b" in text:
        text = ESCAPES.sub("", text)
    if "\r" in text:
        text = text.replace("\r\n", "\n").replace("\r", "\n")
    text = _CONTROLS.sub("", text.replace("\u00a0", " "))
    lines = unquoted(text).split("\n")
    return [line[:_MAX_LINE] for line in lines] if max(map(len, lines)) > _MAX_LINE else lines


def _title(line: str) -> tuple[str, str] | None:
    """Return the command that a line names as the head of a block and the machine's name in its prompt ("":
    none); None when it is no such line.

    Each form is read in one pass: a line of 20,000 blanks or dashes must not take long.
    """
    if dashes := _DASHES.match(line):  # --- dmesg, --- dmesg ---
        rest = line[dashes.end() :]
        return rest.rstrip("-").rstrip() or rest[:1], ""
    if line[0] == "=":  # ==> file <==, === dmesg ===
        inner = line.strip("=")
        if not inner or not (line.startswith("==") and line.endswith("==")):
            return None
        inner = inner.removeprefix(">").removesuffix("<")
        title = inner.strip() or inner[-1:]
        return (title, "") if title and not set("=<>") & set(title) else None
    if line[0] == "#" and _OF_A_TEST.match(line):
        return None
    if line[0] in "#$" and (comment := _COMMENT_OR_PROMPT.match(line)):
        return comment["title"], ""
    if "@" in line and (prompt := _LONG_PROMPT.match(line)):
        return prompt["title"], prompt["machine"]
    if len(line) > _LONGEST_COMMAND or (around := _AROUND.match(line)) is None:
        return None
    command = line[around.end() :].rstrip("*`: \t")
    return (command, "") if _COMMAND.fullmatch(command) else None


def _close(blocks: list[Block], title: str, lines: list[str], machine: str) -> None:
    text = "\n".join(lines)
    if title or text.strip():
        block = Block(title, text, machine)
        if lines:  # they are there already: no need to cut the text again
            vars(block)["lines"] = lines
        blocks.append(block)
