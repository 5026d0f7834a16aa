"""Checks: pure functions from facts to findings, one module a subject."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from deploy_kit.configs.schema import Host
from deploy_kit.doctor.checks import (
    driver_answer,
    driver_module,
    expected,
    gpus,
    isolation,
    kernel_log,
    links,
    nccl,
    peers,
    processors,
    software,
)
from deploy_kit.doctor.facts.machine import Machine
from deploy_kit.doctor.model import Finding, Verdict

CHECKS: dict[str, Callable[[Machine], Iterator[Finding]]] = {
    # Root causes first: findings of one verdict keep this order.
    "kernel-log": kernel_log.check,
    "peers": peers.check,
    "nccl": nccl.check,
    "isolation": isolation.check,
    "driver": driver_answer.check,
    "module": driver_module.check,
    "gpus": gpus.check,
    "links": links.check,
    "processors": processors.check,
    "software": software.check,
}


def run_checks(machine: Machine, host: Host | None = None) -> Iterator[Finding]:
    """Given a machine's facts and, if there is one, its host file, yield all findings."""
    if not machine.recognised:
        # A refusal of the container engine is a whole answer; anything else that nobody recognises is none.
        refusals = list(software.check(machine))
        yield from refusals or [
            Finding(
                "input.not-recognised",
                Verdict.UNKNOWN,
                "no known command's output was recognised" if machine.text.strip() else "the input is empty",
                "paste the output of nvidia-smi topo -m, topo -p2p r, nvidia-smi -q, sudo lspci -vv,"
                " sudo dmesg, …; or take"
                " `deploy-kit doctor --capture DIR` on the machine",
            )
        ]
    else:
        found = [finding for check in CHECKS.values() for finding in check(machine)]
        yield from found
        if not found and not machine.unknown:
            yield Finding(
                "input.nothing-to-say",
                Verdict.UNKNOWN,
                "something was recognised, but not enough of it to judge",
                "paste more of the output, or several commands' outputs",
            )
        if host is not None:
            yield from expected.check(machine, host)
    for source in machine.unknown:
        yield Finding(
            f"unread.{source.source}",
            Verdict.UNKNOWN,
            f"{source.source} could not be read: {source.reason}",
            f"run `{source.command}`" if source.command else None,
        )
