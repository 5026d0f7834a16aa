"""What must hold on this machine before the engine starts: seconds here, twenty minutes there."""

from __future__ import annotations

import os
import re
import socket
from pathlib import Path

from deploy_kit.errors import DeployKitError
from deploy_kit.exit_codes import ExitCode
from deploy_kit.plan.model import Plan

_WEIGHTS = (".safetensors", ".bin", ".gguf")
_NEEDED = (*_WEIGHTS, ".json")


def refuse_unready_machine(plan: Plan, *, address: str, gpus: int | None = None) -> None:
    """Raise the first thing that would make this plan fail here: GPUs, missing files, a taken port."""
    refuse_missing_gpus(plan, count_gpus() if gpus is None else gpus)
    refuse_missing_paths(plan)
    refuse_taken_port(address, plan.port)


def count_gpus(devices: Path = Path("/dev")) -> int:
    """Return how many NVIDIA GPUs this process could open: device files /dev/nvidia0, 1, …"""
    return sum(1 for path in devices.glob("nvidia*") if re.fullmatch(r"nvidia\d+", path.name))


def refuse_missing_gpus(plan: Plan, found: int) -> None:
    """Raise when the plan needs more GPUs than were found."""
    if found < plan.gpus:
        raise DeployKitError(
            f"the plan needs {plan.gpus} GPUs",
            key=f"host {plan.host}: tensor_parallel",
            found=f"{found} (/dev/nvidia*)",
            remedy="run it on the host it is for, or rehearse: --host rehearsal",
            exit_code=ExitCode.NO_GPU,
        )


def refuse_missing_paths(plan: Plan) -> None:
    """Raise when the model or the drafter is not there or is not a model folder."""
    for what, text in plan.required_paths:
        path = Path(text)
        code = ExitCode.ENGINE_DRAFTER if what == "drafter" else ExitCode.ENGINE_WEIGHTS
        if not os.path.isdir(path):  # noqa: PTH112  (Path.is_dir raises where a parent may not be searched)
            raise DeployKitError(
                f"the {what} is not there",
                file=path,
                found="a file" if os.path.exists(path) else _nothing(path),  # noqa: PTH110  (the same)
                allowed="a folder with config.json and weights",
                remedy="mount or download it, or correct its path in the model's file"
                + ("; SGLang would silently load the target as its own draft" if what == "drafter" else ""),
                exit_code=code,
            )
        try:
            has_config = (path / "config.json").is_file()
            names = [entry.name for entry in path.iterdir()]
        except OSError as error:
            raise DeployKitError(
                f"the {what}'s folder cannot be read: {error.strerror}",
                file=path,
                remedy="let the engine's user read it",
                exit_code=code,
            ) from error
        unreadable = [n for n in names if n.endswith(_NEEDED) and not os.access(path / n, os.R_OK)]
        if unreadable:
            raise DeployKitError(
                f"the {what}'s files cannot be read: Permission denied",
                file=path / unreadable[0],
                found=f"{len(unreadable)} file(s) that this user may not read",
                remedy="let the engine's user read them",
                exit_code=code,
            )
        if not has_config or not any(name.endswith(_WEIGHTS) for name in names):
            raise DeployKitError(
                f"the {what}'s folder is incomplete",
                file=path,
                found="no config.json" if not has_config else "config.json, but no weights (*.safetensors)",
                allowed="config.json and *.safetensors",
                remedy="finish the download",
                exit_code=code,
            )


def _nothing(path: Path) -> str:
    for parent in reversed(path.parents):
        if os.path.isdir(parent) and not os.access(parent, os.X_OK):  # noqa: PTH112
            return f"nothing that this user can see: {parent} may not be searched"
    return "nothing"


def refuse_taken_port(address: str, port: int) -> None:
    """Raise when something listens on the port already."""
    with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((address, port))
        except OSError as error:
            raise DeployKitError(
                f"port {port} on {address} cannot be used: {error.strerror}",
                key="DEPLOY_KIT_PORT",
                found=port,
                remedy="stop what listens there (ss -ltnp shows it), or choose another port",
                exit_code=ExitCode.PORT_TAKEN,
            ) from error
