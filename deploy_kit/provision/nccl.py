"""Which NCCL environment a host gets: chosen by a person, measured by the probe, kept, or the safe
default."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from deploy_kit.errors import DeployKitError
from deploy_kit.exit_codes import ExitCode
from deploy_kit.provision.inventory import nccl_problems
from deploy_kit.receipts.model import Receipt
from deploy_kit.receipts.store import read_receipt, read_receipts

MEASURED_MARK = "# Measured by deploy-kit probe allreduce"


@dataclass(frozen=True)
class Choice:
    """The variables for [nccl], and where they come from."""

    environment: Mapping[str, str]
    source: str


def choose_nccl(
    *,
    host: str,
    given: Mapping[str, str],
    receipt: Path | None,
    existing: Mapping[str, str] | None,
    existing_measured: bool,
    default: Mapping[str, str],
) -> Choice:
    """Return the variables for a host's [nccl]. Order: what the inventory names, the probe's receipt, what
    the probe wrote to the host's file itself, the default of the host's profile. A choice that the doctor
    calls a fault is refused."""
    if given:
        choice = Choice(given, "the inventory (nccl_environment)")
    elif receipt is not None:
        found = _newest(receipt, host)
        choice = Choice({**default, **_setting(found)}, f"the probe's receipt {found.short_id}")
    elif existing is not None and existing_measured:
        choice = Choice(existing, "the host's file, measured by the probe there")
    else:
        choice = Choice(default, "the default of the host's profile; not measured on this host")
    wrong = nccl_problems(choice.environment, name=choice.source)
    if wrong:
        raise DeployKitError("\n".join(map(str, wrong)), exit_code=ExitCode.CONFIG)
    return choice


def _newest(path: Path, host: str) -> Receipt:
    if path.is_file():
        receipts = [read_receipt(path)]
    else:
        receipts = [
            one
            for one in read_receipts(path, kind="allreduce")
            if one.host.name == host and not one.rehearsal
        ]
    if not receipts:
        raise DeployKitError(
            f"no receipt of an all-reduce measurement on {host}",
            file=path,
            key="nccl_env_receipt",
            remedy="run `deploy-kit probe allreduce --receipts` on the host, or leave nccl_env_receipt out",
            exit_code=ExitCode.INPUT,
        )
    newest = receipts[-1]
    wrong = (
        f"it is a receipt of kind {newest.kind}" if newest.kind != "allreduce"
        else "it is a rehearsal's: it never decides for real hardware" if newest.rehearsal
        else f"it was measured on {newest.host.name}, not on {host}" if newest.host.name != host
        else None
    )  # fmt: skip
    if wrong:
        raise DeployKitError(
            f"this receipt cannot set a host's NCCL environment: {wrong}",
            file=path,
            key="nccl_env_receipt",
            exit_code=ExitCode.INPUT,
        )
    return newest


def _setting(receipt: Receipt) -> dict[str, str]:
    setting = receipt.summary.get("host_setting")
    environment = setting.get("environment") if isinstance(setting, dict) else None
    if not isinstance(environment, dict):
        why = setting.get("unknown") if isinstance(setting, dict) else None
        raise DeployKitError(
            f"this receipt holds no setting for a host: {why or 'no host_setting in its summary'}",
            key="nccl_env_receipt",
            found=receipt.short_id,
            remedy="measure again, or leave nccl_env_receipt out",
            exit_code=ExitCode.INPUT,
        )
    return {str(name): str(value) for name, value in environment.items()}
