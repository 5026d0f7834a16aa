"""The doctor as one call, for the command line, Ansible's preflight, and first light."""

from __future__ import annotations

from collections.abc import Iterable

from deploy_kit.configs.schema import Host, Model
from deploy_kit.doctor.blocks import Block
from deploy_kit.doctor.checks import run_checks, weights
from deploy_kit.doctor.checks.ids import fits, is_known, known_words
from deploy_kit.doctor.facts.machine import gather
from deploy_kit.doctor.flat import flat_facts
from deploy_kit.doctor.model import Finding, Report, Unknown, Verdict, report
from deploy_kit.errors import DeployKitError, nearest_names
from deploy_kit.exit_codes import ExitCode


def examine(
    blocks: list[Block],
    unknown: Iterable[Unknown] = (),
    *,
    host: Host | None = None,
    model: Model | None = None,
    only: Iterable[str] = (),
) -> Report:
    """Given outputs of commands and what could not be read, return the report; with a model, also what disk
    and memory mean for its weights.

    `only` keeps the findings whose id is one of these or begins with one and a dot. A check about which
    nothing was read gives an unknown finding, a word that is no check's a `DeployKitError`: neither looks
    passed.
    """
    wanted = wanted_checks(only)
    machine = gather(blocks, unknown)
    findings = list(run_checks(machine, host))
    if model is not None and machine.recognised:
        findings += weights.check(machine, model, host.models_directory if host else None)
    if machine.no_gpu:
        findings.append(_no_gpu(host))
    if wanted:
        findings = _only(findings, wanted)
    return report(findings, flat_facts(machine))


def wanted_checks(only: Iterable[str]) -> list[str]:
    """Given the words of `--only`, return them; a `DeployKitError` offers the nearest for one that is no
    check's."""
    wanted = [word.strip() for word in only if word.strip()]
    for word in wanted:
        if not is_known(word):
            groups = ", ".join(known for known in known_words() if "." not in known)
            near = nearest_names(word, known_words())
            raise DeployKitError(
                "there is no such check: --only takes ids of findings, or their first words",
                key="--only",
                found=word,
                allowed=f"{', '.join(near)} (nearest); first words: {groups}" if near else groups,
                remedy="without --only the report shows every id",
                exit_code=ExitCode.USAGE,
            )
    return wanted


def _no_gpu(host: Host | None) -> Finding:
    if host is not None and host.gpus == 0:
        return Finding("gpu.absent", Verdict.OK, f"no NVIDIA GPU, as {host.name} says: rehearsal only")
    return Finding(
        "gpu.absent",
        Verdict.FAIL if host is not None else Verdict.UNKNOWN,
        "this machine has no NVIDIA GPU on its PCI bus: GPU, P2P and link checks have nothing to read",
        "run it on the GPU host, read a capture of it (`--from`), or rehearse (`deploy-kit up`)",
        ("no device with vendor 10de and a display class in /sys/bus/pci/devices",),
    )


def _only(findings: list[Finding], wanted: list[str]) -> list[Finding]:
    kept = [f for f in findings if any(fits(f.id, word) for word in wanted)]
    for word in wanted:
        if not any(fits(f.id, word) for f in kept):
            kept.append(
                Finding(
                    f"{word}.not-checked",
                    Verdict.UNKNOWN,
                    f"no check could say anything about {word}: its source was not read",
                    "without --only the report shows every id and what could not be read",
                )
            )
    return kept
