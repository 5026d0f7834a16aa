"""What the provisioning roles call on the machine that runs Ansible: `python -m deploy_kit.provision WORD`,
JSON in on stdin, JSON out on stdout, an error as one block with its exit code."""

from __future__ import annotations

import json
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from deploy_kit.configs.catalog import Catalog
from deploy_kit.configs.schema import Host, Model
from deploy_kit.deploy.checkout import find_checkout
from deploy_kit.doctor.bundle import read_input, write_bundle
from deploy_kit.doctor.examine import examine
from deploy_kit.doctor.facts.machine import gather
from deploy_kit.errors import DeployKitError
from deploy_kit.exit_codes import ExitCode
from deploy_kit.files import read_text
from deploy_kit.provision.capture import parse_capture, write_reader
from deploy_kit.provision.host_file import binding_obstacle, host_file, numa_nodes
from deploy_kit.provision.inventory import nccl_problems, problems, refuse, roles_folder
from deploy_kit.provision.nccl import MEASURED_MARK, choose_nccl
from deploy_kit.provision.triage import sort_findings
from deploy_kit.provision.variables import read_variables
from deploy_kit.provision.weights import look_at_weights, parse_hub_notes


def validate(wish: dict[str, Any]) -> dict[str, Any]:
    """`{host, variables, others, inventory}` → `{variables}`, how many; an error lists every problem.
    `others` are names of variables that begin with no role's name."""
    root = find_checkout()
    found = problems(
        wish["variables"],
        read_variables(roles_folder(root)),
        Catalog.find(root / "configs"),
        others=[str(name) for name in wish.get("others", ())],
    )
    refuse(str(wish["host"]), found, wish.get("inventory"))
    return {"variables": len(wish["variables"])}


def pack(wish: dict[str, Any]) -> dict[str, Any]:
    """`{path}` → `{path}`: the doctor's reader, written there."""
    return {"path": str(write_reader(Path(wish["path"])))}


def judge(wish: dict[str, Any]) -> dict[str, Any]:
    """`{capture | from, host, active, accepted, keep}` → the doctor's report, its findings sorted, and the
    NUMA nodes."""
    if wish.get("from"):
        blocks, unknown = read_input(str(wish["from"]))
    else:
        blocks, unknown = parse_capture(str(wish["capture"]))
    if wish.get("keep"):
        write_bundle(Path(wish["keep"]), blocks, unknown)
    host = _expected(wish)
    report = examine(blocks, unknown, host=host)
    machine = gather(blocks, unknown)
    nodes, why_not = numa_nodes(machine)
    return {
        "verdict": report.verdict.value,
        "exit_code": int(report.verdict.exit_code),
        "has_gpu": not machine.no_gpu and machine.gpu_count != 0,
        "gpus": machine.gpu_count,
        "driver": report.facts.get("driver")
        or (machine.driver.version if machine.driver is not None else None),
        "facts": report.facts,
        "findings": [finding.as_dict() for finding in report.findings],
        "sorted": sort_findings(report, wish.get("active", ()), wish.get("accepted", ())).as_dict(),
        "numa": [node.model_dump() for node in nodes],
        "numa_unknown": why_not,
        "binding_obstacle": binding_obstacle(machine, nodes),
    }


def compose_host(wish: dict[str, Any]) -> dict[str, Any]:
    """`{host, existing, changes}` → `{content}`: the host's own file."""
    return {"content": host_file(_profile(wish["host"]), wish.get("existing"), wish["changes"])}


def nccl(wish: dict[str, Any]) -> dict[str, Any]:
    """`{host, existing, given, receipt}` → `{content, environment, source}`: the host's file with its
    [nccl]."""
    base = _profile(wish["host"])
    existing = wish.get("existing")
    choice = choose_nccl(
        host=base["name"],
        given=wish.get("given") or {},
        receipt=Path(wish["receipt"]) if wish.get("receipt") else None,
        existing=_nccl_table(existing),
        existing_measured=existing is not None and MEASURED_MARK in existing,
        default=base.get("nccl", {}),
    )
    content = host_file(base, existing, {"nccl": dict(choice.environment)})
    return {"content": content, "environment": dict(choice.environment), "source": choice.source}


def model(wish: dict[str, Any]) -> dict[str, Any]:
    """`{model, drafter}` → where its weights belong under the models folder, shards and bytes as far as
    known."""
    found = _catalog().load(Model, str(wish["model"]))
    name = wish.get("drafter")
    path = found.drafters[name].path if name else found.path
    inside = path.removeprefix("/models/")
    if inside == path or ".." in inside.split("/"):
        raise DeployKitError(
            f"{found.name} is not kept in the models folder",
            key="path",
            found=path,
            allowed="/models/NAME",
            remedy="leave it out of model_store_models",
            exit_code=ExitCode.CONFIG,
        )
    return {
        "name": f"{found.name}-{name}" if name else found.name,
        "folder": inside,
        # A drafter's shards and bytes are not in the configuration: its own index says them.
        "shards": None if name else found.shards,
        "bytes": None if name else found.size_bytes,
    }


def weights(wish: dict[str, Any]) -> dict[str, Any]:
    """`{files, index, shards, bytes, checksums, hub_notes}` → what is whole, missing, damaged, unverified."""
    checksums = read_text(Path(wish["checksums"]), what="checksum file") if wish.get("checksums") else ""
    return look_at_weights(
        wish["files"],
        wish.get("index"),
        shards=wish.get("shards"),
        size_bytes=wish.get("bytes"),
        checksums=checksums,
        hub_checksums=parse_hub_notes(wish.get("hub_notes") or ""),
    ).as_dict()


def _expected(wish: dict[str, Any]) -> Host | None:
    """Return what the machine should be: its own host file where it has one, else the profile."""
    text = wish.get("host_text")
    if not text:
        return _catalog().host(str(wish["host"])) if wish.get("host") else None
    try:
        return Host.model_validate(tomllib.loads(text))
    except (tomllib.TOMLDecodeError, RecursionError, ValidationError) as error:
        raise DeployKitError(
            f"the host's own file is not valid: {str(error).splitlines()[0]}",
            file="host.toml",
            remedy="correct it, or move it away: provisioning writes a new one",
            exit_code=ExitCode.CONFIG,
        ) from error


def _catalog() -> Catalog:
    return Catalog.find(find_checkout() / "configs")


def _profile(name: str) -> dict[str, Any]:
    host: Host = _catalog().host(name)
    # Only what the profile's file says: defaults of the schema stay unwritten.
    return host.model_dump(exclude_unset=True)


def _nccl_table(text: str | None) -> dict[str, str] | None:
    if text is None:
        return None
    try:
        table = tomllib.loads(text).get("nccl")
    except (tomllib.TOMLDecodeError, RecursionError):
        return None  # told when the file is composed
    return table if isinstance(table, dict) and not nccl_problems(table) else None


WORDS: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "validate": validate,
    "pack": pack,
    "judge": judge,
    "host-file": compose_host,
    "nccl": nccl,
    "model": model,
    "weights": weights,
}


def main(arguments: list[str]) -> int:
    """Run one word; return the exit code."""
    if len(arguments) != 1 or arguments[0] not in WORDS:
        sys.stderr.write(f"usage: python -m deploy_kit.provision {{{'|'.join(WORDS)}}}  (JSON on stdin)\n")
        return int(ExitCode.USAGE)
    try:
        wish = json.loads(sys.stdin.read() or "{}")
        answer = WORDS[arguments[0]](wish)
    except DeployKitError as error:
        sys.stderr.write(f"{error}\n")
        return int(error.exit_code)
    except (json.JSONDecodeError, KeyError) as error:
        sys.stderr.write(f"the JSON on stdin is not what {arguments[0]} wants: {error}\n")
        return int(ExitCode.USAGE)
    json.dump(answer, sys.stdout)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
