"""The kernel's command line and its settings."""

from __future__ import annotations

import re
from dataclasses import dataclass

from deploy_kit.doctor.blocks import Block


@dataclass(frozen=True)
class CommandLine:
    """The kernel's boot parameters, as last given; `planned` when read from a boot loader's configuration."""

    parameters: dict[str, str]
    text: str
    planned: bool = False


_CMDLINE = re.compile(r"(?:^|\s)(?:BOOT_IMAGE=|root=(?:UUID|LABEL|PARTUUID|/dev|ZFS)\S*)")
_CMDLINE_LOG = re.compile(r"(?:Kernel c|C)ommand line: (.*)$")
_GRUB = re.compile(r'^\s*GRUB_CMDLINE_LINUX(?:_DEFAULT)?=["\']?(.*?)["\']?$')
_IOMMU_WORD = re.compile(r"(?:^|\s)(?:amd_iommu|intel_iommu|iommu)=\S+")
_PARAMETER = re.compile(r"[\w.-]+(?P<value>=\S*)?")


def parse_command_line(block: Block) -> CommandLine | None:
    """Given /proc/cmdline (or a kernel log or GRUB file that holds it), return its parameters."""
    planned: CommandLine | None = None
    titled = "cmdline" in block.title
    for line in (
        block.lines
        if titled
        else block.lines_with("ommand line: ", "GRUB_CMDLINE_LINUX", "BOOT_IMAGE=", "root=", "iommu=")
    ):
        if found := _CMDLINE_LOG.search(line):
            return CommandLine(_parameters(found[1]), found[1].strip())
        if grub := _GRUB.match(line.rstrip()):
            if grub[1].strip():
                planned = CommandLine(_parameters(grub[1]), grub[1], planned=True)
            continue
        if line.lstrip().startswith("["):
            continue
        named = titled and line.strip() and "GRUB" not in line
        if named or _CMDLINE.search(line) or (_IOMMU_WORD.search(line) and _only_parameters(line)):
            return CommandLine(_parameters(line), line.strip())
    return planned


def _only_parameters(line: str) -> bool:
    """Whether the line is nothing but parameters, at least one of them with a value."""
    words = [_PARAMETER.fullmatch(word) for word in line.split()]
    return all(words) and any(word["value"] for word in words if word is not None)


def _parameters(text: str) -> dict[str, str]:
    pairs = (word.partition("=") for word in re.findall(r'(?:[^\s"]|"[^"]*")+', text))
    return {key: value.strip('"') for key, _, value in pairs}


# --- settings
# -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class KernelSettings:
    """Settings read from sysctl, sysfs or their files; None: not read."""

    numa_balancing: int | None = None
    governors: tuple[str, ...] = ()
    hmm_disabled: bool | None = None
    aspm_policy: str | None = None


_GOVERNORS = {"performance", "powersave", "schedutil", "ondemand", "conservative", "userspace"}
# sysfs with the file's name; cpupower, which speaks the language of its user.
_GOVERNOR = re.compile(r'(?:scaling_governor\s*[:=]\s*|(?:The governor|Der Regler) ")(\w+)')
# A governor alone on its line; `sort | uniq -c` puts a number before it.
_COUNTED = re.compile(rf"(?:\d{{1,5}}\s+)?({'|'.join(sorted(_GOVERNORS))})")
_SETTING_WORDS = ("numa_balancing", "uvm_disable_hmm", "[default]", *sorted(_GOVERNORS))


def parse_settings(block: Block) -> KernelSettings | None:
    """Given `sysctl`, `cat` of governors, of uvm_disable_hmm or of the ASPM policy, return what was read."""
    balancing: int | None = None
    hmm: bool | None = None
    aspm: str | None = None
    governors: list[str] = []
    titled = "numa_balancing" in block.title or "uvm_disable_hmm" in block.title
    for line in block.lines if titled else block.lines_with(*_SETTING_WORDS):
        text = line.strip()
        if found := re.search(r"(?:kernel[./])?numa_balancing\s*[=:]\s*(\d)\b", text):
            balancing = int(found[1])
        elif "numa_balancing" in block.title and re.fullmatch(r"\d", text, re.ASCII):
            balancing = int(text)
        elif found := re.search(r"uvm_disable_hmm\s*[=:]\s*([01YNyn])\b", text):
            hmm = found[1] in "1Yy"
        elif "uvm_disable_hmm" in block.title and re.fullmatch(r"[01YN]", text):
            hmm = text in "1Y"
        elif found := _GOVERNOR.search(text) or _COUNTED.fullmatch(text):
            governors.append(found[1])
        elif found := re.fullmatch(
            r"(?:\w+ )*\[(default|performance|powersave|powersupersave)\](?: \w+)*", text
        ):
            aspm = found[1]
    settings = KernelSettings(
        balancing, tuple(dict.fromkeys(g for g in governors if g in _GOVERNORS)), hmm, aspm
    )
    return None if settings == KernelSettings() else settings
