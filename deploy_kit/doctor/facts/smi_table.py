"""nvidia-smi's plain table and its list (`-L`)."""

from __future__ import annotations

import re
from dataclasses import replace

from deploy_kit.doctor.blocks import Block
from deploy_kit.doctor.facts.gpu import Gpu, integer_of, number_of

_GPU = re.compile(
    r"^\|\s+(?P<index>\d+)\s+(?P<name>\S.*?)\s+(?:(?P<persistence>On|Off)\s+)?"
    r"\|\s*(?P<bus>[0-9A-Fa-f]{8}:[0-9A-Fa-f:.]+)(?:[^|]*\|\s*(?P<ecc>\S+)\s*\|)?"
)
_STATE = re.compile(
    r"^\|[^|]*?\bP(?P<pstate>\d+)\s+(?P<draw>\S+)\s*/\s*(?P<cap>\S+)\s*"
    r"\|\s*(?P<used>\d+)MiB\s*/\s*(?P<total>\d+)MiB"
    r"\s*\|\s*(?P<use>\d+%|N/A|ERR!)?\s*(?P<mode>[^|]*?)\s*(?:\||$)"
)
# The third line of a GPU says one thing only, in its last column; a star: from the next reset on.
_MIG = re.compile(r"^\|\s*\|\s*\|\s*(?P<mig>Enabled|Disabled)(?P<pending>\*?)\s*\|")
_LISTED = re.compile(r"^GPU (?P<index>\d+): (?P<name>.+?) \(UUID: \S+\)\s*$")
# The table has room for short words; `-q` has the long ones.
_COMPUTE_MODES = {"E. Process": "Exclusive_Process", "Prohibited": "Prohibited", "Default": "Default"}


def parse_table(block: Block) -> list[Gpu]:
    """Given the plain table (whole or a part), return its GPUs; a table printed again (`-l`, `watch`) counts
    once, as it was last."""
    gpus: dict[str, Gpu] = {}
    last: str | None = None
    for line in block.lines_with("|", "ERR!"):
        if head := _GPU.match(line):
            last = head["bus"].lower()
            gpus[last] = Gpu(
                bus_id=head["bus"],
                index=int(head["index"][:6]),
                name=head["name"],
                persistence=None if head["persistence"] is None else head["persistence"] == "On",
                # A number; Off and N/A without ECC, On with MIG.
                uncorrectable_volatile=integer_of(head["ecc"]),
                error_fields=("ECC",) if "ERR!" in line else (),
            )
        elif last is None:
            continue
        elif gpus[last].fb_mib is None:
            gpus[last] = _with_state(gpus[last], line)
        elif gpus[last].mig is None and (mig := _MIG.match(line)):
            gpus[last] = replace(gpus[last], mig=mig["mig"] == "Enabled")
    return list(gpus.values())


def _with_state(gpu: Gpu, line: str) -> Gpu:
    """Return the GPU with what its second line says."""
    errors = gpu.error_fields + (("state",) if "ERR!" in line else ())
    state = _STATE.match(line)
    if state is None:
        return replace(gpu, error_fields=errors)
    return replace(
        gpu,
        pstate=f"P{state['pstate']}",
        power_limit_w=number_of(state["cap"]),
        fb_used_mib=integer_of(state["used"]),
        fb_mib=integer_of(state["total"]),
        utilization_percent=integer_of(state["use"]),
        compute_mode=_COMPUTE_MODES.get(state["mode"]),
        error_fields=errors,
    )


def parse_list(block: Block) -> list[Gpu]:
    """Given `nvidia-smi -L`, return its GPUs."""
    return [
        Gpu(index=int(match["index"][:6]), name=match["name"])
        for line in block.lines_with(" (UUID: ")
        if (match := _LISTED.match(line.strip()))
    ]
