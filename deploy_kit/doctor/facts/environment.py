"""Environment variables that matter to NCCL, CUDA, PyTorch and SGLang; anything else is not read or kept."""

from __future__ import annotations

import re

from deploy_kit.doctor.blocks import Block

_PREFIXES = (
    "NCCL_", "CUDA_", "NVIDIA_", "SGLANG_", "SGL_", "PYTORCH_", "TORCH_", "FLASHINFER_", "LD_", "OMP_",
    "TRITON_",
)  # fmt: skip
_MATTERS = re.compile(rf"^(?:{'|'.join(_PREFIXES)})[A-Z0-9_]+$")
_SECRET = re.compile(r"TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIAL|API_?KEY|_KEY$|AUTH", re.IGNORECASE)
_ASSIGNMENT = re.compile(r"^\s*(?:-\s+|export\s+|-e\s+|declare -x\s+)?\"?([A-Z][A-Z0-9_]*)[=](.*?)\"?,?$")
# NCCL_DEBUG=INFO NCCL_ALGO=Ring python bench.py
_BEFORE_A_COMMAND = re.compile(
    r"\s*(?:(?:sudo|env|time|export)\s+)*(?P<given>(?:[A-Z][A-Z0-9_]*=\S*(?:\s+|$))+)"
    r"(?:[a-z./][\w./-]*(?:\s|$)|$)"
)
_GIVEN = re.compile(r"([A-Z][A-Z0-9_]*)=(\S*)")
_YAML = re.compile(
    r"^\s*((?:NCCL|CUDA|NVIDIA|SGLANG|PYTORCH|TORCH)_[A-Z0-9_]+):\s+[\"']?([^\"'\s]+)[\"']?\s*$"
)


def matters(name: str) -> bool:
    """Return whether the variable is read: by its prefix, and never one that may hold a secret."""
    return _MATTERS.match(name) is not None and _SECRET.search(name) is None


def parse_environment(block: Block) -> dict[str, str] | None:
    """Given `env`, `export` lines or an `environment:` list, return the variables that matter; None
    without any."""
    found = {}
    for line in [block.title, *block.lines_with(*_PREFIXES)]:
        if before := _BEFORE_A_COMMAND.match(line):
            given = {name: value.strip("'\";") for name, value in _GIVEN.findall(before["given"])}
            found.update({name: value for name, value in given.items() if matters(name)})
            continue
        if line is block.title:
            continue  # only what was set for the command: "--- with NCCL_ALGO=Tree" is prose
        match = _ASSIGNMENT.match(line.rstrip()) or _YAML.match(line)
        if match and matters(match[1]):
            found[match[1]] = match[2].strip("'\"")
    return found or None
