"""The machine's own host file: the profile it is of, with its own NUMA nodes, weights folder and NCCL
settings."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from deploy_kit.configs.schema import Host, NumaNode
from deploy_kit.doctor.facts.machine import Machine
from deploy_kit.errors import DeployKitError
from deploy_kit.exit_codes import ExitCode

_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
HEADING = (
    "# Written by provisioning (docs/provision.md): this machine's CPUs, weights and NCCL settings.\n"
    "# Keys that provisioning does not decide are kept when you change them here.\n"
)


def numa_nodes(machine: Machine) -> tuple[list[NumaNode], str | None]:
    """Given a machine's facts, return its NUMA nodes with GPUs and on-line CPUs, or none and the reason."""
    topology = machine.topology
    if topology is None:
        return [], "the driver has not said which GPU is where (nvidia-smi topo -m): after a reboot it can"
    if topology.missing:
        return [], f"the topology table is cut off ({', '.join(topology.missing)})"
    groups = topology.numa_groups()
    if sorted(gpu for gpus in groups.values() for gpu in gpus) != sorted(topology.gpus):
        return [], "the driver names no NUMA node for some GPUs"
    if machine.cpu is None or not machine.cpu.numa_cpus:
        return [], "lscpu has not said which CPUs belong to which node"
    nodes = []
    for name, gpus in sorted(groups.items(), key=lambda item: int(item[0]) if item[0].isdigit() else -1):
        if not name.isdigit():
            return [], f"the driver names the NUMA node of GPU {gpus[0]} {name!r}"
        cpus = machine.cpu.numa_cpus.get(int(name), "").replace(" ", "")
        if not re.fullmatch(r"\d+(-\d+)?(,\d+(-\d+)?)*", cpus):
            return [], f"node {name} of GPU {gpus[0]} has no CPUs"
        nodes.append(NumaNode(node=int(name), gpus=list(gpus), cpus=cpus))
    return nodes, None


def binding_obstacle(machine: Machine, nodes: list[NumaNode]) -> str | None:
    """Return why ranks cannot be bound to the nodes' memory; None when they can."""
    sizes = {node.node: node.size_mb for node in machine.numa.nodes} if machine.numa is not None else {}
    bare = [node.node for node in nodes if sizes.get(node.node) == 0]
    if not nodes:
        return "the NUMA nodes of the GPUs are not known"
    return f"node {', '.join(map(str, bare))} has no memory" if bare else None


def host_file(
    base: Mapping[str, Any], existing: str | None, changes: Mapping[str, Any], *, file: str = "host.toml"
) -> str:
    """Given the profile's table, the text of the host's present file (None: none) and what this role decides,
    return the file's text.

    A value of None in `changes` removes the key; a table is replaced whole. A file that says the same already
    comes back as it is, comments and all.
    """
    before: dict[str, Any] | None = None
    if existing is not None:
        try:
            before = tomllib.loads(existing)
        except (tomllib.TOMLDecodeError, RecursionError) as error:
            raise DeployKitError(
                f"the host's own file is not TOML: {error}",
                file=file,
                remedy="correct it, or move it away: provisioning writes a new one",
                exit_code=ExitCode.CONFIG,
            ) from error
    table = dict(base if before is None else before)
    for key, value in changes.items():
        if key == "flags" and isinstance(value, Mapping):
            # Flags are shared with whoever tuned this host: only the ones named change.
            flags = {**table.get("flags", {}), **value}
            table["flags"] = {name: flag for name, flag in flags.items() if flag is not None}
        elif value is None:
            table.pop(key, None)
        else:
            table[key] = value
    _must_be_a_host(table, file)
    if table == before and existing is not None:
        return existing
    text = HEADING + to_toml(table)
    if tomllib.loads(text) != table:
        raise DeployKitError(
            "a value of the host file cannot be written as TOML", file=file, exit_code=ExitCode.CONFIG
        )
    return text


def _must_be_a_host(table: Mapping[str, Any], file: str) -> None:
    try:
        Host.model_validate(table)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise DeployKitError(
            f"this would be no valid host file: {first['msg']}",
            file=file,
            key=".".join(map(str, first["loc"])) or None,
            remedy="correct the file on the host or the inventory; docs/configs.md lists every key",
            exit_code=ExitCode.CONFIG,
        ) from error


def to_toml(table: Mapping[str, Any]) -> str:
    """Given a table of plain values, tables and lists of tables, return it as TOML, plain values first."""
    plain = {key: value for key, value in table.items() if not _is_table(value)}
    lines = [f"{_key(key)} = {_value(value)}" for key, value in plain.items()]
    for key, value in table.items():
        if isinstance(value, Mapping):
            lines += ["", f"[{_key(key)}]", *(f"{_key(k)} = {_value(v)}" for k, v in value.items())]
        elif _is_table(value):
            for entry in value:
                lines += ["", f"[[{_key(key)}]]", *(f"{_key(k)} = {_value(v)}" for k, v in entry.items())]
    return "\n".join(lines) + "\n"


def _is_table(value: Any) -> bool:
    return isinstance(value, Mapping) or (
        isinstance(value, list) and bool(value) and all(isinstance(entry, Mapping) for entry in value)
    )


def _key(name: str) -> str:
    return name if _BARE_KEY.fullmatch(name) else _value(name)


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        # JSON's escapes are TOML's, but for DEL, which TOML wants escaped.
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, list):
        return f"[{', '.join(_value(entry) for entry in value)}]"
    return repr(value)
